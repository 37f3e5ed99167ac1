"""What makes a directory a checkpoint: `manifest.json`, with size and CRC-32 of every file, written last.

A checkpoint is made under a name that begins with a dot and renamed when all of it is on disk, so a directory of the
right name is whole unless its files were changed later; `find_damage` tells.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recpipe.data.encoding import link
from recpipe.errors import CheckpointError
from recpipe.escapes import shown
from recpipe.train.checkpoint_file import Written, checksum
from recpipe.untrusted import Source, Value, member, typed

logger = logging.getLogger(__name__)
MANIFEST = "manifest.json"
FORMAT = 1
MAX_BYTES = 2**53
"""Of a file of a checkpoint."""


def unfinished_name(folder: Path) -> Path:
    """Where a checkpoint lies while it is being made."""
    return folder.with_name(f".{folder.name}.unfinished")


@dataclass(frozen=True)
class Linked:
    """A file of a run that never changes and that all of its checkpoints have."""

    path: Path
    written: Written


def write_linked(folder: Path, links: Mapping[str, Linked]) -> dict[str, Written]:
    """Gives files a second name below `folder`, or copies them where the file system has no such thing.

    Args:
        links: path inside the folder -> file.

    Raises:
        CheckpointError: a file is no longer as it was.
    """
    for name, one in links.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        link(one.path, target)
        if target.stat().st_size != one.written.num_bytes:
            raise CheckpointError(f"{one.path}: has changed since the run began")
    return {name: one.written for name, one in links.items()}


def write_text(path: Path, text: str) -> Written:
    """Writes a small file and forces it to disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return Written(len(data), zlib.crc32(data))


def write_manifest(folder: Path, files: Mapping[str, Written], notes: Mapping[str, Any]) -> None:
    """Writes the manifest.

    Args:
        files: path inside the folder -> what was written.
        notes: facts to list checkpoints by, such as the step.
    """
    listed = {name: [file.num_bytes, file.crc32] for name, file in sorted(files.items())}
    write_text(folder / MANIFEST, _render({"format": FORMAT, **notes, "files": listed}))


def publish(unfinished: Path, folder: Path) -> None:
    """Gives a finished checkpoint its name; an older one of that name goes."""
    for path in (*(p for p in unfinished.rglob("*") if p.is_dir()), unfinished):
        _sync(path)
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    unfinished.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def finish_publishing(folder: Path) -> None:
    """Names a finished checkpoint whose older one had just lost the name when everything was killed."""
    for old in folder.glob(".*.old"):
        path = folder / old.name[1:].removesuffix(".old")
        if not path.exists():
            unfinished = unfinished_name(path)
            (unfinished if unfinished.is_dir() else old).rename(path)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint.

    Raises:
        CheckpointError: there is none, or it is damaged or of another version.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(f"{shown(folder)}: is no checkpoint (it has no {MANIFEST})")
    # The metrics of a checkpoint may be NaN.
    source = Source(path, CheckpointError, non_finite=True)
    text = source.text()
    content = source.parsed(text)["content"]
    if type(content.raw) is not dict or _render(content.raw) != text:
        raise source.damaged("its checksum does not fit")
    found = content["format"]
    if found.raw != FORMAT:
        raise CheckpointError(f"{path}: has format {shown(found.raw)}, this version reads {FORMAT}")
    return _checked(content)


def _checked(content: Value) -> dict[str, Any]:
    """The manifest, where its parts are what readers expect."""
    typed(content.fields(("files",)), dict.fromkeys(("step", "epoch", "row", "world_size"), "integer"))
    for value in content["files"].fields().values():
        size, crc = value.items(2)
        size.integer(high=MAX_BYTES)
        crc.integer(high=2**32 - 1)
    metrics = content.get("metrics")
    if metrics is not None and metrics.raw is not None:
        all(value.is_number_or_null() for value in metrics.fields().values())
    return dict(content.raw)


def check_folder(folder: Path) -> None:
    """Raises CheckpointError where `folder` is no finished checkpoint; names one near by."""
    if (folder / MANIFEST).is_file():
        return
    beside = (checkpoints_in(place) for place in (folder / "checkpoints", folder.parent))
    near = next((found for listed in beside for found in whole_ones(listed)), None)
    hint = f"; did you mean {near}?" if near else ""
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder}: no such checkpoint; give its directory, for example RUN/checkpoints/final{hint}"
        )
    raise CheckpointError(f"{folder}: is no checkpoint (it has no {MANIFEST}){hint}")


def newest_whole(run: Path) -> Path:
    """The newest checkpoint of a run whose files are as they were written; warns of those that it passes over.

    Raises:
        CheckpointError: there is none.
    """
    listed = checkpoints_in(run / "checkpoints")
    for folder in reversed(listed):
        problem = next(find_damage(folder), None)
        if problem is None:
            return folder
        logger.warning("WARNING: %s; taking the one before it", problem)
    if listed:
        raise CheckpointError(f"{run}: none of its {len(listed)} checkpoints is whole")
    check_folder(run)
    return run


def whole_ones(listed: Sequence[Path]) -> Iterator[Path]:
    """Those of `checkpoints_in` whose files are as they were written, newest first."""
    return (path for path in reversed(listed) if not any(find_damage(path)))


def checkpoints_in(folder: Path) -> list[Path]:
    """Directories named or made as checkpoints, whole or not, oldest step first, the end of a run after others of its step.

    Unfinished ones have another name and are never listed.
    """
    found = [path for path in folder.glob("*") if _is_named(path) or (path / MANIFEST).is_file()]
    return sorted((path for path in found if not path.name.startswith(".")), key=_age)


def _is_named(path: Path) -> bool:
    return path.is_dir() and path.name.partition("-")[0] in ("step", "best", "final")


def _age(folder: Path) -> tuple[float, bool, str]:
    """Sorts by step; where the manifest is damaged, by the name."""
    is_final, number = folder.name == "final", folder.name.rpartition("-")[2]
    try:
        step = float(read_manifest(folder).get("step", 0))
    except CheckpointError:
        step = math.inf if is_final else float(number) if number.isdecimal() else 0.0
    return step, is_final, folder.name


def find_damage(folder: Path, part: int = 0, parts: int = 1, names: Sequence[str] | None = None) -> Iterator[str]:
    """Names what is wrong with the files of a checkpoint, one text each.

    Args:
        part, parts: look at every `parts`-th file from `part` on, so that ranks share the reading.
        names: files that the manifest lists; None: all of them.
    """
    try:
        files = read_manifest(folder)["files"]
    except CheckpointError as error:
        yield str(error)
        return
    for name in list(files if names is None else names)[part::parts]:
        problem = _problem(folder, name, Written(*files[name]))
        if problem:
            yield problem


def read_text(folder: Path, name: str, large: bool = False) -> str:
    """A small file of a checkpoint.

    Args:
        large: it may have as many bytes as a list of all pieces.

    Raises:
        CheckpointError: it is not as it was written.
    """
    expected = read_manifest(folder)["files"].get(name)
    if not expected:
        raise CheckpointError(f"{shown(folder)}: has no {name}")
    source = Source(folder / name, CheckpointError, large=large)
    path = member(folder, name, source)
    size, crc = path.stat().st_size, expected[1]
    if size != expected[0]:
        raise CheckpointError(_other_size(path, size, expected[0]))
    data = source.data()
    if len(data) != size or zlib.crc32(data) != crc:
        raise source.damaged("its checksum does not fit")
    return source.decoded(data)


def read_value(folder: Path, name: str) -> Value:
    """The content of a small JSON file of a checkpoint; NaN is a number there.

    Raises:
        CheckpointError: it is not as it was written, or no JSON.
    """
    return Source(folder / name, CheckpointError, non_finite=True).parsed(read_text(folder, name))


def _problem(folder: Path, name: str, expected: Written) -> str:
    """What is wrong with a file; empty if nothing is."""
    source = Source(folder / MANIFEST, CheckpointError)
    try:
        path = member(folder, name, source)
        found = path.stat().st_size
        if found != expected.num_bytes:
            return _other_size(path, found, expected.num_bytes)
        fits = checksum(path, expected.num_bytes) == expected
        return "" if fits else str(Source(path).damaged("its checksum does not fit"))
    except CheckpointError as error:
        return str(error)
    except OSError as error:
        return f"{folder / name}: {error.strerror or error}"


def _other_size(path: Path, found: int, expected: int) -> str:
    return f"{path}: is cut short or grown: {found} bytes instead of {expected}"


def _render(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, separators=(",", ":"))
    return json.dumps({"crc32": zlib.crc32(text.encode()), "content": content}, separators=(",", ":")) + "\n"


def _sync(folder: Path) -> None:
    """Forces the names in a directory to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
