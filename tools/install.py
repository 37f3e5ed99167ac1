"""Installs recpipe in a virtual environment of its own, in the one order that works.

`torchrec` asks for the CUDA kernel library, `fbgemm-gpu`, which owns the same folder as the CPU one, `fbgemm-gpu-cpu`:
the one that comes last wins. So: torch, one kernel library, recpipe with the rest, and torchrec without its dependencies.
Standard library only; runs under the Python that shall be used. Running it again does nothing unless something changed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH = "torch==2.13.0"
TORCHREC = "torchrec==1.8.0"
KERNELS = {"cpu": "fbgemm-gpu-cpu==1.8.0", "cuda": "fbgemm-gpu==1.8.0"}


def main() -> int:
    """Makes the environment and prints how to use it."""
    parser = argparse.ArgumentParser(description="Install recpipe and what it needs in a virtual environment.")
    parser.add_argument("--venv", default=str(ROOT / ".venv"), help="where the environment is or shall be")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default=os.environ.get("RECPIPE_DEVICE", "auto"))
    parser.add_argument("--torch", default=os.environ.get("RECPIPE_TORCH", TORCH), help="pip requirement for torch")
    parser.add_argument("--no-dev", action="store_true", help="leave out what tests, linter and type checker need")
    options = parser.parse_args()
    if sys.version_info < (3, 10):  # noqa: UP036 - this file is what finds out
        print(f"recpipe needs Python 3.10 or newer; {sys.executable} is {sys.version.split()[0]}", file=sys.stderr)
        return 1
    folder = Path(options.venv).absolute()
    stamp, wanted = folder / "recpipe-install.txt", _fingerprint(options)
    if stamp.is_file() and stamp.read_text() == wanted and _program(folder, "recpipe").exists():
        return 0
    try:
        _install(folder, options)
    except subprocess.CalledProcessError as error:
        print(f"this step failed (exit code {error.returncode}): {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    stamp.write_text(wanted)
    return 0


def _fingerprint(options: argparse.Namespace) -> str:
    """Changes when the project file, this file, the options, Python or the place of the checkout do."""
    digest = hashlib.sha256()
    for path in (ROOT / "pyproject.toml", Path(__file__)):
        digest.update(path.read_bytes())
    return f"{digest.hexdigest()} {options.device} {options.torch} {options.no_dev} {sys.version} {ROOT}\n"


def _install(folder: Path, options: argparse.Namespace) -> None:
    python = _program(folder, "python")
    if not python.exists():
        _say(f"making {folder}")
        venv.create(folder, with_pip=True)
    _pip(python, options.torch)
    kind = _kind(python) if options.device == "auto" else options.device
    _say(f"kernel library for {kind}")
    _install_kernels(python, kind)
    extras = kind if options.no_dev else f"{kind},dev"
    _pip(python, "--editable", f"{ROOT}[{extras}]")
    # Last: pip complains of the kernel library that torchrec lacks whenever it installs something after it.
    _pip(python, "--no-deps", TORCHREC)
    _say(f"installed; {_program(folder, 'recpipe')} doctor checks it")


def _kind(python: Path) -> str:
    """cuda where both the machine and the installed torch have it, else cpu."""
    if shutil.which("nvidia-smi") is None and not Path("/proc/driver/nvidia/version").exists():
        return "cpu"
    ask = "import torch; print(torch.version.cuda or '')"
    answer = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout
    return "cuda" if answer.strip() else "cpu"


def _install_kernels(python: Path, kind: str) -> None:
    """Removing one library breaks the other's files, so with the wrong one there both go first."""
    wrong = KERNELS["cuda" if kind == "cpu" else "cpu"].split("==")[0]
    if subprocess.run([python, "-m", "pip", "show", "-q", wrong], capture_output=True).returncode == 0:
        names = [requirement.split("==")[0] for requirement in KERNELS.values()]
        subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", *names], check=True)
    _pip(python, "--no-deps", KERNELS[kind])


def _pip(python: Path, *arguments: str) -> None:
    _say(f"installing {arguments[-1]}")
    subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments], check=True)


def _program(folder: Path, name: str) -> Path:
    return folder / ("Scripts" if os.name == "nt" else "bin") / name


def _say(text: str) -> None:
    print(f"install: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
