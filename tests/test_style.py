"""House rules that a linter does not know: short files, short functions, a docstring on every module."""

from __future__ import annotations

import ast
import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FUNCTION_LINES, MAX_FILE_LINES = 60, 399
FILES = sorted(path for folder in ("recpipe", "tools", "tests") for path in (ROOT / folder).rglob("*.py"))
LIBRARY = [path for path in FILES if "recpipe" in path.relative_to(ROOT).parts]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def test_files_are_short() -> None:
    assert not [name(path) for path in FILES if len(path.read_text().splitlines()) > MAX_FILE_LINES]


def test_functions_are_short() -> None:
    assert not [
        f"{name(path)}: {node.name}" for path in FILES for node in functions(path) if length(node) > MAX_FUNCTION_LINES
    ]


def test_functions_are_short_in_the_median() -> None:
    assert statistics.median(length(node) for path in LIBRARY for node in functions(path)) <= 12


def test_modules_say_what_they_are() -> None:
    texts = {name(path): path.read_text() for path in LIBRARY}
    assert not [one for one, text in texts.items() if text.strip() and not ast.get_docstring(ast.parse(text))]


def test_no_machine_paths() -> None:
    """No file names a place of the machine it was written on."""
    marks = ("/" + "work/", "/" + "home/", "--index" + "-url", "extra-" + "index")
    folders = ("recpipe", "tools", "tests", "conf", "docs", ".ci")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    # In a worktree .git is a file, and names the repository.
    paths += [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]
    texts = {path: path.read_text(errors="ignore") for path in paths if path.suffix != ".pyc"}
    assert not {name(path) for path, text in texts.items() if any(mark in text for mark in marks)}
