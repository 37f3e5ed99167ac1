"""The encoding of raw rows beside the weights: how it comes into a checkpoint, and what is read by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from recpipe.data.encoding import FOLDER, VOCABULARY, Encoding, keep
from recpipe.data.prepare.inputs import MANIFEST
from recpipe.data.prepared import read_manifest
from recpipe.errors import CheckpointError
from recpipe.train.checkpoint_file import Written, checksum
from recpipe.train.checkpoint_manifest import Linked, find_damage
from recpipe.train.checkpoint_manifest import read_manifest as read_checkpoint


@dataclass(frozen=True)
class Kept:
    """The encoding of a run, as each of its checkpoints has it: small texts and files to link."""

    texts: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, Linked] = field(default_factory=dict)


def keep_encoding(encoding: Encoding | None, run: Path) -> Kept:
    """Puts the encoding in the run directory, once; rank 0 does it.

    Args:
        encoding: None for rows that come from no file.
        run: the run directory.
    """
    if encoding is None:
        return Kept()
    place = run / FOLDER
    keep(encoding, place)
    names = [f"{VOCABULARY}/{name}" for name, _ in encoding.files()]
    links = {f"{FOLDER}/{name}": Linked(place / name, checksum(place / name)) for name in names}
    return Kept({f"{FOLDER}/{MANIFEST}": (place / MANIFEST).read_text()}, links)


def encoding_in(checkpoint: Path, checked: bool = True) -> Encoding | None:
    """The encoding of a checkpoint; None where it has none (an older version, synthetic rows).

    Args:
        checked: read all of its files, and hold them against their checksums; else only the manifest.

    Raises:
        CheckpointError: a file of it is damaged.
    """
    listed = [name for name in read_checkpoint(checkpoint)["files"] if name.startswith(f"{FOLDER}/")]
    if not listed:
        return None
    problem = next(find_damage(checkpoint, names=listed if checked else [f"{FOLDER}/{MANIFEST}"]), None)
    if problem is not None:
        raise CheckpointError(problem)
    place = checkpoint / FOLDER
    encoding = Encoding(place, read_manifest(place))
    missing = [name for name, _ in encoding.files() if f"{FOLDER}/{VOCABULARY}/{name}" not in listed]
    if missing:
        raise CheckpointError(f"{place / MANIFEST}: names {missing[0]}, which the checkpoint does not have")
    return encoding


def encoding_files(checkpoint: Path) -> Kept:
    """The encoding of a checkpoint, for another one that is made of it."""
    encoding = encoding_in(checkpoint)
    if encoding is None:
        return Kept()
    files = read_checkpoint(checkpoint)["files"]
    names = [f"{FOLDER}/{VOCABULARY}/{name}" for name, _ in encoding.files()]
    text = (checkpoint / FOLDER / MANIFEST).read_text()
    links = {name: Linked(checkpoint / name, Written(*files[name])) for name in names}
    return Kept({f"{FOLDER}/{MANIFEST}": text}, links)
