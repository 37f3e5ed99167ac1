"""Walks every import of the package and holds it against the layers of docs/architecture.md."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "recpipe"
LAYERS = (
    ("schedule", "specs", "bounds", "errors", "escapes", "untrusted", "records"),
    ("model", "batch"),
    ("embedding", "comm", "data"),
    ("runtime", "planner"),
    ("train", "cli", "bench"),
)
SIBLINGS = {"embedding", "comm", "data"}
# In one layer, and still not to be.
UPWARDS = {("train", "cli"), ("train", "bench"), ("bench", "cli")}
# Third-party modules and the only places that import them.
ONLY_IN = {
    "torchrec": ("recpipe.embedding", "recpipe.cli.doctor_live", "recpipe.bench.torchrec_side"),
    "fbgemm_gpu": ("recpipe.embedding", "recpipe.cli.doctor_live"),
    "hydra": ("recpipe.cli", "recpipe.train.config"),
    "pandas": ("recpipe.data",),
    "pyarrow": ("recpipe.data",),
    "matplotlib": ("recpipe.bench.plot",),
}
STDLIB_ONLY = (
    "recpipe.schedule",
    "recpipe.specs",
    "recpipe.bounds",
    "recpipe.errors",
    "recpipe.escapes",
    "recpipe.untrusted",
    "recpipe.train.failures",
    "recpipe.bench.settings",
    "recpipe.bench.links",
    "recpipe.cli.doctor_checks",
)
# Imported before a command runs: torch here would make `recpipe --help` slow.
TORCH_INSIDE_FUNCTIONS = (
    "recpipe.cli",
    *(f"recpipe.train.{name}" for name in ("config", "launch", "launch_local", "interrupt", "watchdog", "logs")),
)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text())


def targets(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute, so that this walk can read them"
        assert node.module is not None
        # `from recpipe import batch` imports recpipe.batch.
        if node.module == "recpipe":
            return [
                f"recpipe.{alias.name}" if f"recpipe.{alias.name}" in MODULES else "recpipe" for alias in node.names
            ]
        return [node.module]
    return []


def imports(name: str) -> list[str]:
    """Everything `name` imports, at the top or inside functions."""
    return [target for node in ast.walk(tree(name)) for target in targets(node)]


def inside(name: str, places: tuple[str, ...]) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in places)


def part(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def layer(name: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if part(name) in names)


def test_imports_point_down() -> None:
    wrong = []
    for name in MODULES:
        for target in imports(name):
            if not target.startswith("recpipe.") or name == "recpipe" or part(target) == part(name):
                continue
            siblings = {part(target), part(name)} <= SIBLINGS
            if layer(target) > layer(name) or siblings or (part(name), part(target)) in UPWARDS:
                wrong.append(f"{name} imports {target}")
    assert not wrong


@pytest.mark.parametrize("library", ONLY_IN)
def test_libraries_stay_in_their_place(library: str) -> None:
    users = {name for name in MODULES for target in imports(name) if target.split(".")[0] == library}
    strays = sorted(name for name in users if not inside(name, ONLY_IN[library]))
    assert not strays, f"{library} is imported outside of {ONLY_IN[library]}"


def test_standard_library_only() -> None:
    known = {*sys.stdlib_module_names, "recpipe"}
    modules = [name for name in MODULES if inside(name, STDLIB_ONLY)]
    assert not [(name, target) for name in modules for target in imports(name) if target.split(".")[0] not in known]


def test_torch_is_imported_when_needed() -> None:
    heavy = ("torch", "torchrec", "fbgemm_gpu")
    modules = [name for name in MODULES if inside(name, TORCH_INSIDE_FUNCTIONS)]
    top = [(name, target) for name in modules for node in tree(name).body for target in targets(node)]
    assert not [(name, target) for name, target in top if target.split(".")[0] in heavy]


def test_every_part_has_a_layer() -> None:
    for name in MODULES:
        if name != "recpipe":
            layer(name)
