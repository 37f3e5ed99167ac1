"""The package is pure: standard library only, no torch, and quick to import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "recpipe" / "schedule"


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


BESIDE = ("bounds", "errors", "escapes", "records", "specs", "untrusted")
"""Modules of the lowest layer beside the package."""


def test_only_the_standard_library() -> None:
    beside = [ROOT / "recpipe" / f"{name}.py" for name in BESIDE]
    for file in [*PACKAGE.rglob("*.py"), *beside]:
        for name in imports(file):
            inside = name.startswith(("recpipe.schedule", *(f"recpipe.{one}" for one in BESIDE)))
            assert inside or name.split(".")[0] in sys.stdlib_module_names, f"{file.name} imports {name}"


def test_nothing_heavy_is_loaded() -> None:
    """In a fresh process: the whole package, and no module of hydra, torch, numpy or rich."""
    code = (
        "import sys, recpipe.schedule.auto, recpipe.schedule.report, recpipe.schedule.draw.svg, recpipe.schedule.settings\n"
        "print([m for m in ('torch', 'numpy', 'hydra', 'omegaconf', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_files_and_functions_stay_short() -> None:
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text()
        assert len(text.splitlines()) < 400, file
        tree = ast.parse(text)
        assert ast.get_docstring(tree), file
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 60, f"{file.name}: {node.name}"
