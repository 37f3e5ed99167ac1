"""Damages valid files at random and reads them: only recpipe's own errors may come of it, soon, and in little memory.

    python -m tools.fuzz_files --mutations 100000 --seed 1

Bytes, JSON values and structure, YAML, headers of tensors and arrays are changed; half of the changes below a manifest with
checksums get checksums that fit, so that they reach the readers behind it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import random
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from recpipe.errors import RecpipeError
from tools.fuzz_corpus import TARGETS, Target, seal

SECONDS = 10.0
"""Processor time that reading one damaged file may take."""
EXTRA_BYTES = 3 << 30
_ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**53, 2**63, -(2**63), 10**18, 10**400, 0.5, -0.0, 1e308, 1e-308, "", "x", "0",
    float("nan"), float("inf"), -float("inf"), "../x", "/etc/passwd", "a\x00b", "\x1b]0;x\x07", "\u202e", "\ud800", "x" * 5000,
    "${oc.env:HOME}", "s3://a/b", "???", [], {}, [[]], [{}], {"": {}}, [0] * 300, {"a": {"b": {"c": []}}}, "file:///dev/zero",
)  # fmt: skip
_BYTES = (b"\x00", b"\xff", b"{", b"}", b"[", b'"', b"\\", b"\n", b":", b",", b"9" * 40, b"-", b"\x80", b"&a *a")


@dataclass
class Outcome:
    """What a campaign has met.

    Args:
        mutations: files read.
        errors: by target, how many were refused; `accepted` those that were read.
        findings: descriptions of everything that is not a project's own error in time.
        slowest: seconds of the slowest.
    """

    mutations: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    slowest: float = 0.0


class Corpus:
    """Valid files of some targets, and a place where copies of them are damaged."""

    def __init__(self, place: Path, targets: tuple[Target, ...] = TARGETS) -> None:
        self._place, self.targets = place, targets
        self.folders = {target.name: place / "valid" / target.name for target in targets}
        self.files: dict[str, list[Path]] = {}
        for target in targets:
            folder = self.folders[target.name]
            folder.mkdir(parents=True)
            target.make(folder)
            self.files[target.name] = sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())

    def damaged(self, target: Target, draw: random.Random) -> Path:
        """A copy with some damage."""
        work = self._place / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(self.folders[target.name], work)
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            _damage(work / draw.choice(self.files[target.name]), draw)
        if draw.random() < 0.03:
            _swap(work, self.files[target.name], draw)
        if target.sealed and draw.random() < 0.7:
            # A manifest that was damaged itself has nothing to seal.
            with contextlib.suppress(Exception):
                seal(work)
        return work


def attempt(corpus: Corpus, target: Target, seed: int, outcome: Outcome) -> None:
    """Reads one damaged copy, and notes what came of it."""
    work = corpus.damaged(target, random.Random(f"{target.name} {seed}"))
    began = time.process_time()
    try:
        target.load(work)
        outcome.accepted[target.name] += 1
    except RecpipeError as error:
        outcome.errors[target.name] += 1
        # A message is for a terminal.
        if any(not letter.isprintable() and letter not in "\n\t" for letter in str(error)):
            outcome.findings.append(f"{target.name} {seed}: control characters in {str(error)!r}")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error!s:.200} at {where.filename}:{where.lineno}"
        outcome.findings.append(f"{target.name} {seed}: {what}")
    taken = time.process_time() - began
    outcome.mutations += 1
    outcome.slowest = max(outcome.slowest, taken)
    if taken > SECONDS:
        outcome.findings.append(f"{target.name} {seed}: took {taken:.1f} s")


def _damage(path: Path, draw: random.Random) -> None:
    if not path.is_file():
        return
    data = path.read_bytes()
    structured: Callable[[bytes, random.Random], bytes] | None = {
        ".json": _json, ".yaml": _yaml, ".safetensors": _safetensors, ".npy": _npy, ".txt": _text
    }.get(path.suffix)  # fmt: skip
    change = structured if structured is not None and draw.random() < 0.75 else _raw
    try:
        path.write_bytes(change(data, draw))
    except (ValueError, RecursionError, KeyError, TypeError, yaml.YAMLError):
        # Damaged before, so that it has no structure any more.
        path.write_bytes(_raw(data, draw))


def _swap(work: Path, files: list[Path], draw: random.Random) -> None:
    """Two files change places, or one is a link or is gone."""
    one, other = (work / draw.choice(files) for _ in range(2))
    kind = draw.randrange(3)
    data = other.read_bytes() if other.is_file() else b""
    if one.is_file():
        one.unlink()
    if kind == 0:
        one.write_bytes(data)
    elif kind == 1:
        one.symlink_to(draw.choice(["/dev/zero", "/etc/hostname", one.name, "."]))


def _raw(data: bytes, draw: random.Random) -> bytes:
    """Bits, cuts, insertions, repetitions."""
    at, more = draw.randrange(len(data) + 1), draw.randrange(1, 40)
    kind = draw.randrange(7)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + draw.choice(_BYTES) * draw.choice((1, 1, 3, 2000)) + data[at:]
    if kind == 2:
        return data[:at] + data[at + more :]
    if kind == 3:
        return data[:at] + data[max(0, at - more) : at] * 3 + data[at:]
    if kind == 4:
        return data[:at] + draw.randbytes(min(more, len(data) - at)) + data[at + more :]
    changed = bytearray(data)
    for _ in range(draw.randrange(1, 4) if data else 0):
        changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _nodes(node: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """(container, key) of everything below a node."""
    for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        found.append((node, key))
        _nodes(node[key], found)
    return found


def _values(content: Any, draw: random.Random) -> Any:
    """One value or key of plain content is changed."""
    nodes = _nodes(content, [])
    if not nodes or draw.random() < 0.02:
        return draw.choice(_ODD)
    container, key = draw.choice(nodes)
    old, kind = container[key], draw.randrange(10)
    if kind == 0:
        del container[key]
    elif kind == 1 and isinstance(container, dict):
        container[draw.choice(["newer", "", "../x", "\x1b[1m", *container])] = container.pop(key)
    elif kind == 2:
        other, place = draw.choice(nodes)
        if type(other) is not type(place) and (place in other if isinstance(other, dict) else place < len(other)):
            container[key] = json.loads(json.dumps(other[place]))
    elif kind == 3 and isinstance(container, list):
        container.extend([old] * draw.choice((1, 2, 500)))
    elif kind == 4 and type(old) in (int, float):
        container[key] = draw.choice([old + 1, old - 1, -old, old * 2, old * 10**9, float(old), str(old)])
    elif kind == 5:
        for _ in range(draw.choice((1, 3, 40, 300))):
            old = [old] if draw.random() < 0.5 else {"a": old}
        container[key] = old
    else:
        container[key] = draw.choice(_ODD)
    return content


def _json(data: bytes, draw: random.Random) -> bytes:
    content = json.loads(data)
    if isinstance(content, dict) and set(content) == {"crc32", "content"} and draw.random() < 0.8:
        from recpipe.train.checkpoint_manifest import _render

        content["content"] = _values(content["content"], draw)
        return _render(content["content"]).encode()
    text = json.dumps(_values(content, draw))
    if draw.random() < 0.05:
        text = text.replace("{", '{"k": 1, "k": 2,', 1)
    return text.encode()


def _yaml(data: bytes, draw: random.Random) -> bytes:
    return yaml.safe_dump(_values(yaml.safe_load(data), draw), allow_unicode=draw.random() < 0.5).encode("utf8", "replace")


def _safetensors(data: bytes, draw: random.Random) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header = json.dumps(_values(json.loads(data[8 : 8 + length]), draw)).encode()
    size = draw.choice([len(header)] * 8 + [0, 2**63, len(header) + 1])
    return size.to_bytes(8, "little") + header + data[8 + length :]


def _npy(data: bytes, draw: random.Random) -> bytes:
    """Another type or shape in a header of the same length."""
    header = data[:128]
    wanted = draw.choice([b"|O", b"<f2", b"<c8", b">i8", b"<U4", b"|V9", b"<i1", b"<f8", b"|S0"])
    changed = re.sub(rb"'[<>|][a-z]\d'", b"'" + wanted + b"'", header) if draw.random() < 0.4 else header
    if draw.random() < 0.6:
        digits = draw.choice([b"0", b"1", b"-1", b"99999999999", b"2" * 30, b"3", b"True", b"1.5", b"[1]"])
        changed = re.sub(rb"\(\d+", b"(" + digits, changed)
    if draw.random() < 0.2:
        changed = changed.replace(b"False", draw.choice([b"True ", b"None ", b"[[[[[", b"1    "]))
    return changed.replace(b" \n", b"\n").rstrip(b"\n").ljust(127)[:127] + b"\n" + data[128:]


def _text(data: bytes, draw: random.Random) -> bytes:
    """A word or a number of a text, or a whole line."""
    words = re.split(rb"(\s+)", data)
    at = draw.randrange(len(words))
    words[at] = draw.choice([b"", b"-1", b"9" * 9, b"1" * 5000, b"F0.0", b"B9.9@9", b"\xff", words[draw.randrange(len(words))]])
    return b"".join(words)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing is logged."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def campaign(corpus: Corpus, mutations: int, seed: int, outcome: Outcome) -> Outcome:
    """Reads so many damaged files, the kinds in turn; stops early at a hundred findings."""
    with quiet():
        for number in range(mutations):
            attempt(corpus, corpus.targets[number % len(corpus.targets)], seed + number, outcome)
            if len(outcome.findings) >= 100:
                break
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--mutations", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        corpus, outcome = Corpus(Path(place)), Outcome()
        for target in corpus.targets:
            target.load(corpus.folders[target.name])
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + EXTRA_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        campaign(corpus, arguments.mutations, arguments.seed * 10**9, outcome)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"seed {arguments.seed}: {outcome.mutations:,} damaged files, {len(outcome.findings)} findings")
    print(f"refused: {dict(outcome.errors)}; still valid: {dict(outcome.accepted)}")
    print(f"{time.process_time() - began:.0f} s of one core, the slowest {outcome.slowest:.2f} s; ", end="")
    print(f"memory {before >> 10} MiB before, {peak >> 10} MiB at most")
    print("\n".join(outcome.findings))
    return 1 if outcome.findings else 0


if __name__ == "__main__":
    sys.exit(main())
