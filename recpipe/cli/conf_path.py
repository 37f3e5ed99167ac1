"""Where the YAML files are: `conf/` of a checkout, or the copy inside an installed wheel."""

from __future__ import annotations

from pathlib import Path

import recpipe


def conf_dir() -> Path | None:
    """The directory with the root files of all commands; None if the installation lacks it."""
    package = Path(recpipe.__file__).resolve().parent
    for folder in (package.parent / "conf", package / "conf"):
        if (folder / "train.yaml").is_file():
            return folder
    return None
