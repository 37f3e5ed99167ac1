"""The doctor: the kernel library trap (case 36), missing distributions, a trial that crashes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from recpipe.cli import doctor
from recpipe.cli.doctor_checks import (
    NEEDED,
    PINNED,
    Finding,
    environment_findings,
    live_findings,
    package_findings,
)
from recpipe.cli.main import main

LIBRARY = "fbgemm_gpu/kernels.so"


def install(site: Path, name: str, version: str, library: bytes | None = None) -> None:
    """A distribution as pip leaves it, with one compiled file if asked."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("" if library is None else f"{LIBRARY},,{len(library)}\n")
    if library is not None:
        (site / "fbgemm_gpu").mkdir(exist_ok=True)
        (site / LIBRARY).write_bytes(library)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Everything but the kernel library."""
    for name, version in PINNED.items():
        install(tmp_path, name, f"{version}+cpu" if name == "torch" else version)
    for name in NEEDED:
        install(tmp_path, name, "1.0")
    return tmp_path


def kernel(site: Path, nvidia: bool = False) -> Finding:
    return list(package_findings([str(site)], nvidia))[-1]


def test_right_library(site: Path) -> None:
    install(site, "fbgemm-gpu-cpu", "1.8.0", b"cpu")
    findings = list(package_findings([str(site)], False))
    assert {finding.status for finding in findings} == {"ok"}


def test_cuda_library_over_the_cpu_one(site: Path) -> None:
    install(site, "fbgemm-gpu-cpu", "1.8.0", b"cpu")
    install(site, "fbgemm-gpu", "1.8.0", b"cuda")
    found = kernel(site)
    assert found.status == "fail"
    assert "fbgemm-gpu 1.8.0 lies over fbgemm-gpu-cpu 1.8.0" in found.text
    assert "pip uninstall -y fbgemm-gpu fbgemm-gpu-cpu" in found.cure
    assert "pip install --no-deps fbgemm-gpu-cpu==1.8.0" in found.cure


def test_cuda_library_without_cuda(site: Path) -> None:
    install(site, "fbgemm-gpu", "1.8.0", b"cuda")
    assert "here is no CUDA" in kernel(site).text
    assert kernel(site, nvidia=True).status == "fail", "torch for CPU cannot load it, whatever the machine has"


@pytest.mark.parametrize("left", [b"another size", None])
def test_files_that_another_distribution_left_or_took(site: Path, left: bytes | None) -> None:
    install(site, "fbgemm-gpu-cpu", "1.8.0", b"cpu")
    if left is None:
        (site / LIBRARY).unlink()
    else:
        (site / LIBRARY).write_bytes(left)
    assert kernel(site).status == "fail"
    assert LIBRARY in kernel(site).text


def test_no_library(site: Path) -> None:
    assert kernel(site).status == "fail"
    assert "make install" in kernel(site).cure


def test_missing_and_untested_distributions(tmp_path: Path) -> None:
    install(tmp_path, "torch", "2.12.0")
    findings = list(package_findings([str(tmp_path)], False))
    assert findings[0] == Finding("note", "torch 2.12.0; tested with 2.13.0", findings[0].cure)
    assert findings[1].text == "torchrec is not installed"
    assert "omegaconf" in next(finding.text for finding in findings if finding.text.startswith("not installed"))


def test_a_crash_in_the_trial_is_a_finding() -> None:
    code = (
        "import json, os; print(json.dumps(dict(status='ok', text='torch imports', cure='')), flush=True); os.abort()"
    )
    findings = list(live_findings([sys.executable, "-c", code]))
    assert findings[0].text == "torch imports"
    assert findings[1].status == "fail"
    assert "crashed" in findings[1].text


def test_machine() -> None:
    assert not [finding for finding in environment_findings() if finding.status == "fail"]


def test_exit_code_follows_failures(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "package_findings", lambda: iter([Finding("fail", "something is broken", "mend it")]))
    monkeypatch.setattr(doctor, "live_findings", lambda: iter([]))
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "FAIL  something is broken\n        cure: mend it" in shown
    assert "1 essential check failed" in shown


def test_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0, capsys.readouterr().out


def test_settings_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "seed=1"]) == 2
    assert "takes no settings" in capsys.readouterr().err


def test_torch_that_does_not_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libtorch_cuda.so: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    findings = list(live_findings())
    assert findings[0].status == "fail"
    assert "libtorch_cuda.so" in findings[0].text
