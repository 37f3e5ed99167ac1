"""The program itself: help without torch, exit codes, one message for every failure, conf/ inside a wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import recpipe
import recpipe.cli.train
from recpipe.cli.commands import COMMANDS
from recpipe.cli.main import main
from recpipe.errors import ConfigError, DataError, RecpipeError

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, **options)


def test_torch_is_imported_when_needed() -> None:
    lines = [
        ["--help"],
        ["--version"],
        ["train", "--help"],
        ["train", "modl=x"],
        ["simulate", "--cfg", "job"],
        ["trian"],
    ]
    code = f"import sys; from recpipe.cli.main import main; [main(line) for line in {lines}]; sys.exit('torch' in sys.modules)"
    assert python(code).returncode == 0


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"recpipe {recpipe.__version__}\n"


def test_no_command_shows_help() -> None:
    assert main([]) == 2


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert capsys.readouterr().err == "error: trian: no such command; did you mean train?\n"


@pytest.mark.parametrize(("kind", "code"), [(ConfigError, 2), (DataError, 1), (RecpipeError, 1)])
def test_foreseen_failure(
    kind: type[RecpipeError], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(cfg: Any) -> int:
        raise kind("row 7: what is wrong")

    monkeypatch.setattr(recpipe.cli.train, "main", fail)
    assert main(["train"]) == code
    assert capsys.readouterr().err == "error: row 7: what is wrong\n"


def test_unforeseen_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(cfg: Any) -> int:
        return {}["nowhere"]

    monkeypatch.setattr(recpipe.cli.train, "main", fail)
    assert main(["train"]) == 1
    pattern = r"error: unexpected KeyError: 'nowhere' \(test_main\.py:\d+ in fail\)\nThe full trace is in (\S+)\n"
    found = re.fullmatch(pattern, capsys.readouterr().err)
    assert found
    trace = Path(found[1])
    assert "Traceback" in trace.read_text()
    trace.unlink()


def test_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(cfg: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(recpipe.cli.train, "main", interrupt)
    assert main(["train"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_reader_that_goes_away() -> None:
    """``recpipe simulate | head -1`` ends without a trace."""
    command = f"{sys.executable} -m recpipe.cli.main simulate --cfg job | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""


def test_conf_inside_a_wheel(tmp_path: Path) -> None:
    """A wheel has conf/ inside the package (see pyproject.toml)."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "recpipe", tmp_path / "recpipe", ignore=ignore)
    shutil.copytree(ROOT / "conf", tmp_path / "recpipe" / "conf")
    code = "import sys; from recpipe.cli.main import main; sys.exit(main(['train', 'model=deepfm', '--cfg', 'job']))"
    done = python(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "name: deepfm" in done.stdout
