"""The table of a comparison, and the same as data."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from recpipe.bench.compare import Measured, Section
from recpipe.bench.links import NONE

_COLUMNS = ("median ms", "min", "max", "rows/s", "ratio", "MB sent", "counted", "peak MB", "limit", "x limit")
_WIDTHS = (10, 8, 8, 9, 7, 9, 9, 9, 8, 9)
NOTES = """ms of a step of all ranks; one value a block of steps, blocks of the contestants alternate. ratio: median of the
fastest synchronous TorchRec pipeline over this one's. MB sent: a step, by the rank that sends most, as its interface counts
(on loopback: a share of all that the machine sends to itself). counted: what recpipe itself says it sends. limit: the longer
of products, in this contestant's precision, plus table traffic at this machine's measured speed, and the bytes it sends at the
link's rate."""


def title(section: Section) -> str:
    """What a section is about."""
    one = section.workload
    link = "loopback" if section.link == NONE else section.link
    return f"{one.model}, {one.ids} ids, {link}, {one.ranks} ranks x {one.batch_size:,} rows"


def text(section: Section) -> str:
    """A section for people."""
    width = max(len(row.contestant.label) for row in section.rows)
    head = " " * width + "".join(f"{name:>{size}}" for name, size in zip(_COLUMNS, _WIDTHS, strict=True))
    return "\n".join([title(section), head, *(_line(section, row, width) for row in section.rows)])


def _line(section: Section, row: Measured, width: int) -> str:
    entry = as_dict(section, row)
    ratio = "-" if entry["ratio"] is None else f"{entry['ratio']:.2f}"
    counted = f"{sum(row.counted.values()) / 1e6:.2f}" if row.counted else "-"
    cells = [
        f"{entry['ms']:.1f}", f"{entry['min_ms']:.1f}", f"{entry['max_ms']:.1f}", f"{entry['rows_per_second']:,.0f}", ratio,
        f"{entry['bytes'] / 1e6:.2f}", counted, f"{row.peak / 1e6:,.0f}", f"{entry['limit_ms']:.1f}",
        f"{entry['ms'] / entry['limit_ms']:.2f}",
    ]  # fmt: skip
    return f"{row.contestant.label:<{width}}" + "".join(f"{c:>{size}}" for c, size in zip(cells, _WIDTHS, strict=True))


def as_dict(section: Section, row: Measured) -> dict[str, Any]:
    """A row for JSON."""
    reference = section.reference
    return {
        "contestant": row.contestant.name,
        "exact": "stale" not in row.contestant.label,
        "model": section.workload.model,
        "ids": section.workload.ids,
        "link": section.link,
        "ms": 1e3 * row.middle,
        "min_ms": 1e3 * min(row.seconds),
        "max_ms": 1e3 * max(row.seconds),
        "blocks_ms": [1e3 * seconds for seconds in row.seconds],
        "rows_per_second": section.workload.global_batch / row.middle,
        "ratio": None if reference is None else reference / row.middle,
        "bytes": median(row.bytes),
        "counted_bytes": row.counted,
        "peak_bytes": row.peak,
        "limit_ms": 1e3 * section.limit.of(row),
        "gemm_ms": 1e3 * section.limit.products(row.contestant),
        "table_ms": 1e3 * section.limit.tables,
    }


def records(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """All rows for JSON."""
    return [as_dict(section, row) for section in sections for row in section.rows]
