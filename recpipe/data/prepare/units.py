"""The parsed rows of one chunk on disk: an Arrow file that appears whole or not at all."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from recpipe.data.prepare.raw import BadLine, DenseRange, Raw

META = b"recpipe"


@dataclass(frozen=True)
class Unit:
    """One chunk after parsing.

    Args:
        path: its Arrow file.
        source: number of the input file.
        rows: usable rows.
        lines: lines of the chunk, bad ones included.
        skipped: those that begin no record.
        ranges: of its raw dense values.
        bad: the bad lines.
        samples: of each categorical column, the texts of the first rows.
    """

    path: Path
    source: int
    rows: int
    lines: int
    skipped: int
    ranges: tuple[DenseRange, ...]
    bad: tuple[BadLine, ...]
    samples: tuple[list[str], ...] = ()

    @property
    def records(self) -> int:
        """Rows and bad lines."""
        return self.lines - self.skipped

    def table(self, columns: list[int] | None = None) -> pa.Table:
        """Its raw table, or some columns of it; mapped, not read."""
        with pa.memory_map(str(self.path)) as file:
            options = pa.ipc.IpcReadOptions(included_fields=columns)
            return pa.ipc.open_file(file, options=options).read_all()


def unit_path(directory: Path, reader: int, index: int) -> Path:
    """Where the chunk's file goes."""
    return directory / f"{reader:04d}" / f"{index:06d}.arrow"


def write_unit(path: Path, raw: Raw) -> None:
    """Write the raw rows; the name appears when all bytes are there."""
    ranges, bad = [asdict(one) for one in raw.ranges], [asdict(one) for one in raw.bad]
    about = {"lines": raw.lines, "skipped": raw.skipped, "samples": raw.samples}
    meta = json.dumps({**about, "ranges": ranges, "bad": bad})
    table = raw.table.replace_schema_metadata({META: meta.encode()})
    partial = path.with_suffix(".partial")
    with pa.OSFile(str(partial), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    os.replace(partial, path)


def read_unit(path: Path, source: int) -> Unit:
    """What the file says of itself."""
    with pa.memory_map(str(path)) as file:
        reader = pa.ipc.open_file(file)
        meta = json.loads(reader.schema.metadata[META])
        rows = sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))
    ranges, bad = (DenseRange(**one) for one in meta["ranges"]), (BadLine(**one) for one in meta["bad"])
    lines, skipped, samples = meta["lines"], meta["skipped"], tuple(meta["samples"])
    return Unit(path, source, rows, lines, skipped, tuple(ranges), tuple(bad), samples)
