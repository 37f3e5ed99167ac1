"""Is there room on disk? Asked before the work starts."""

from __future__ import annotations

import shutil
from pathlib import Path

from recpipe.data.prepare.inputs import Source
from recpipe.data.prepare.raw import Format
from recpipe.data.prepare.streams import compression, head
from recpipe.errors import DataError

SAMPLE = 1 << 20
USUAL_RATIO = {".gz": 3.0, ".zst": 3.5}


def check_space(directory: Path, sources: list[Source], fmt: Format) -> None:
    """Compare an estimate of what will be written with the free bytes.

    Raises:
        DataError: too little room, with both numbers.
    """
    wanted = sum(_rows(source) for source in sources) * _bytes_per_row(fmt) * 2
    free = shutil.disk_usage(directory).free + _already_there(directory)
    if wanted > free:
        raise DataError(
            f"{directory} has {free / 1e9:.2f} GB free, about {wanted / 1e9:.2f} GB are needed "
            f"(parsed chunks and the result); choose another data.out or data.cache_dir"
        )


def _rows(source: Source) -> float:
    """Estimated rows of a file."""
    sample = head(source.path, SAMPLE)
    lines = max(1, sample.count(b"\n"))
    return source.size * USUAL_RATIO.get(compression(source.path), 1.0) / max(1, len(sample) / lines)


def _bytes_per_row(fmt: Format) -> int:
    """Bytes of a row, raw or encoded."""
    return 4 + 4 * len(fmt.dense) + 4 * len(fmt.categorical) * (1 if not fmt.multi_valued else 4)


def _already_there(directory: Path) -> int:
    """Bytes that an interrupted run has written."""
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
