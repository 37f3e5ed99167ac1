"""The checks of ``recpipe doctor``: this machine, the installed distributions, and what a trial process reports."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from recpipe import __version__
from recpipe.cli.conf_path import conf_dir

CPU_KERNELS, CUDA_KERNELS = "fbgemm-gpu-cpu", "fbgemm-gpu"
KERNEL_VERSION = "1.8.0"
PINNED = {"torch": "2.13.0", "torchrec": "1.8.0", "hydra-core": "1.3.8", "torchmetrics": "1.0.3"}
NEEDED = (
    "tensordict",
    "omegaconf",
    "numpy",
    "pandas",
    "pyarrow",
    "rich",
    "zstandard",
    "tqdm",
    "pyre-extensions",
    "iopath",
)
INSTALL = "make install (or: python tools/install.py)"
_TRIAL_SECONDS = 120
_LITTLE_DISK, _GIB = 5 << 30, 1 << 30


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Args:
        status: ok, note (something to know) or fail (essential and broken).
        cure: what to do; empty if nothing.
    """

    status: str
    text: str
    cure: str = ""


def environment_findings() -> Iterator[Finding]:
    """Python, processor, memory, disk, configuration files."""
    version = platform.python_version()
    enough = sys.version_info >= (3, 10)
    yield Finding("ok" if enough else "fail", f"python {version}", "" if enough else "use Python 3.10 or newer")
    yield _processor()
    yield _disk(Path.cwd())
    folder = conf_dir()
    if folder is None:
        yield Finding("fail", f"recpipe {__version__}: its conf directory is missing", INSTALL)
    else:
        yield Finding("ok", f"recpipe {__version__}, settings in {folder}")


def _processor() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    flags = _cpu_flags(Path("/proc/cpuinfo"))
    known = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "sve") if name in flags]
    text = f"{platform.machine()}, {cores} cores, {', '.join(known) or 'no vector extensions known'}"
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        text += f", {os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / _GIB:.0f} GiB memory"
    if flags and platform.machine() == "x86_64" and "avx2" not in flags:
        return Finding("note", text, "without avx2 the kernel library is slow; use a processor that has it")
    return Finding("ok", text)


def _cpu_flags(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    lines = (line for line in path.read_text().splitlines() if line.lower().startswith(("flags", "features")))
    return set(next(lines, "").partition(":")[2].split())


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    cure = "" if free >= _LITTLE_DISK else "free some space, or set run.dir and data.cache_dir to another disk"
    return Finding("note" if cure else "ok", f"{free / _GIB:.0f} GiB free in {folder}", cure)


def package_findings(path: Sequence[str] | None = None, nvidia: bool | None = None) -> Iterator[Finding]:
    """Versions of everything needed, and the state of the kernel library.

    Args:
        path: where to look for distributions; None: where Python does.
        nvidia: whether the machine has an NVIDIA driver; None: look.
    """
    found = _distributions(path)
    for name, wanted in PINNED.items():
        yield _pinned(name, wanted, found[name].version if name in found else None)
    missing = [name for name in NEEDED if name not in found]
    if missing:
        yield Finding("fail", f"not installed: {', '.join(missing)}", INSTALL)
    yield Finding("ok", ", ".join(f"{name} {found[name].version}" for name in NEEDED if name in found))
    cuda = (has_nvidia() if nvidia is None else nvidia) and not ("torch" in found and "+cpu" in found["torch"].version)
    yield kernel_finding(found, cuda)


def _distributions(path: Sequence[str] | None) -> dict[str, metadata.Distribution]:
    every = metadata.distributions() if path is None else metadata.distributions(path=list(path))
    return {str(one.metadata["Name"]).lower().replace("_", "-"): one for one in every}


def _pinned(name: str, wanted: str, there: str | None) -> Finding:
    if there is None:
        return Finding("fail", f"{name} is not installed", INSTALL)
    if there.split("+")[0] != wanted:
        return Finding("note", f"{name} {there}; tested with {wanted}", INSTALL)
    return Finding("ok", f"{name} {there}")


def kernel_finding(found: dict[str, metadata.Distribution], has_cuda: bool) -> Finding:
    """The trap: both kernel libraries own the folder `fbgemm_gpu`, and the one that was installed last wins."""
    cpu, cuda = found.get(CPU_KERNELS), found.get(CUDA_KERNELS)
    right = CUDA_KERNELS if has_cuda else CPU_KERNELS
    cure = (
        f"{sys.executable} -m pip uninstall -y {CUDA_KERNELS} {CPU_KERNELS} && "
        f"{sys.executable} -m pip install --no-deps {right}=={KERNEL_VERSION}"
    )
    if cpu is None and cuda is None:
        return Finding("fail", "no kernel library (fbgemm) is installed", INSTALL)
    if cpu is not None and cuda is not None:
        text = (
            f"both kernel libraries are installed: {CUDA_KERNELS} {cuda.version} lies over {CPU_KERNELS} {cpu.version}"
        )
        return Finding("fail", f"{text} (torchrec's own requirements do this)", cure)
    if cuda is not None and not has_cuda:
        return Finding("fail", f"{CUDA_KERNELS} {cuda.version} is the CUDA kernel library; here is no CUDA", cure)
    one, name = (cpu, CPU_KERNELS) if cpu is not None else (cuda, CUDA_KERNELS)
    assert one is not None
    changed = _changed_libraries(one)
    if changed:
        return Finding("fail", f"{name} {one.version}: overwritten or missing: {', '.join(changed[:3])}", cure)
    return Finding("ok", f"{name} {one.version}")


def _changed_libraries(distribution: metadata.Distribution) -> list[str]:
    """Compiled files of a distribution that are not as it installed them."""
    changed = []
    for file in distribution.files or []:
        if file.suffix != ".so" or file.size is None:
            continue
        there = Path(str(distribution.locate_file(file)))
        if not there.is_file() or there.stat().st_size != file.size:
            changed.append(str(file))
    return changed


def has_nvidia() -> bool:
    """Whether the machine has an NVIDIA driver."""
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia/version").exists()


def live_findings(program: Sequence[str] = (sys.executable, "-m", "recpipe.cli.doctor_live")) -> Iterator[Finding]:
    """What `recpipe.cli.doctor_live` reports; a library that crashes there does not end this command."""
    try:
        done = subprocess.run(list(program), capture_output=True, text=True, timeout=_TRIAL_SECONDS)
        output, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as error:
        output, code = (error.stdout or b"").decode(errors="replace"), None
    for line in output.splitlines():
        if line.startswith("{"):
            yield Finding(**json.loads(line))
    if code is None:
        yield Finding("fail", f"the trial hung for {_TRIAL_SECONDS} seconds after this", INSTALL)
    elif code:
        yield Finding("fail", f"the trial crashed after this (exit code {code})", INSTALL)
