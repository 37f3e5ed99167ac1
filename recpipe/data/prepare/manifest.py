"""The manifest: all that is known of a prepared directory, without times or places of its making."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from functools import reduce
from pathlib import Path
from typing import Any

from recpipe.data.encoding import Encoding
from recpipe.data.prepare.assign import SPLITS
from recpipe.data.prepare.encode import ShardRecord, ShardWriter
from recpipe.data.prepare.inputs import MANIFEST
from recpipe.data.prepare.layout import Layout
from recpipe.data.prepare.npy import digest_of
from recpipe.data.prepare.ranking import FeatureCounts
from recpipe.data.prepare.raw import DenseRange, Format
from recpipe.data.prepare.settings import effective
from recpipe.data.prepare.spread import ColumnSpread
from recpipe.data.prepare.transform import DESCRIPTIONS
from recpipe.data.prepare.vocabulary import vocabulary_files
from recpipe.errors import DataError

FORMAT = "recpipe-rows/1"


def write_manifest(
    config: Any,
    name: str,
    directory: Path,
    layout: Layout,
    fmt: Format,
    checksums: list[int],
    counts: list[FeatureCounts] | None,
    spreads: list[ColumnSpread],
    writer: ShardWriter,
    records: list[ShardRecord],
    bad: int,
    warnings: list[str],
    known: Encoding | None = None,
) -> None:
    """Check that every line is accounted for, then write."""
    lines = sum(unit.records for unit in layout.units)
    rows = {split: layout.num_rows(number) for number, split in enumerate(SPLITS)}
    _check_totals(rows, records, lines, bad)
    manifest = {
        "format": FORMAT,
        "digest": name,
        "rows": rows,
        "lines": lines,
        "bad_lines": bad,
        "rows_per_shard": config.rows_per_shard,
        "jagged": writer.jagged,
        "dense": _dense(layout, fmt, writer, spreads),
        "transform": {"name": config.dense_transform, "formula": DESCRIPTIONS[config.dense_transform]},
        "vocabulary": _vocabulary(config),
        "features": _features(config, fmt, directory, counts, writer, records),
        "shards": [asdict(record) for record in records],
        **({} if known is None else {"base": _base(known)}),
        "provenance": {"settings": effective(config), "sources": _sources(layout, checksums), "warnings": warnings},
    }
    partial = directory / (MANIFEST + ".partial")
    partial.write_text(json.dumps(manifest, indent=1) + "\n")
    os.replace(partial, directory / MANIFEST)


def _base(known: Encoding) -> dict[str, Any]:
    """The encoding that this one goes on with, and how many ids each feature had there."""
    return {"digest": known.digest, "num_ids": [feature["num_ids"] for feature in known.manifest["features"]]}


def _check_totals(rows: dict[str, int], records: list[ShardRecord], lines: int, bad: int) -> None:
    """Lines = rows + bad lines, and the shards hold all rows."""
    written = {split: sum(record.rows for record in records if record.split == split) for split in SPLITS}
    if written != rows or sum(rows.values()) + bad != lines:
        raise DataError(
            f"row counts do not add up: {lines:,} lines, {bad:,} bad, split as {rows}, written as {written}; "
            f"the result is not used. Remove the directory and prepare again"
        )


def _dense(layout: Layout, fmt: Format, writer: ShardWriter, spreads: list[ColumnSpread]) -> list[dict[str, Any]]:
    """Raw range and missing share of each dense column, over all usable rows, its scale, and its values by split."""
    total = max(1, sum(unit.rows for unit in layout.units))
    described = []
    for number, column in enumerate(fmt.dense):
        of_all = reduce(DenseRange.join, (unit.ranges[number] for unit in layout.units))
        spread = spreads[number]
        described.append(
            {
                "name": column,
                "min": of_all.low if of_all.low <= of_all.high else None,
                "max": of_all.high if of_all.low <= of_all.high else None,
                "missing_share": round(of_all.missing / total, 6),
                **writer.scales[number].to_json(),
                "counts": {"train": spread.train.to_json(), "held_out": spread.held_out.to_json()},
            }
        )
    return described


def _vocabulary(config: Any) -> dict[str, Any]:
    """How values became ids."""
    if config.vocabulary == "hash":
        return {"kind": "hash", "size": config.hash_size, "ids": {"missing": 0}}
    return {
        "kind": "frequency",
        "threshold": config.frequency_threshold,
        "max_ids": config.max_ids,
        "of": "training rows",
        "ids": {"missing": 0, "rare_or_unseen": 1, "first": 2},
    }


def _features(
    config: Any,
    fmt: Format,
    directory: Path,
    counts: list[FeatureCounts] | None,
    writer: ShardWriter,
    records: list[ShardRecord],
) -> list[dict[str, Any]]:
    """Size, missing and rare ids by split, and vocabulary files of each feature."""
    features = []
    for number, name in enumerate(fmt.categorical):
        by_split = {
            kind: {
                split: sum(getattr(record, kind)[number] for record in records if record.split == split)
                for split in SPLITS
            }
            for kind in ("ids", "missing", "rare")
        }
        entry: dict[str, Any] = {"name": name, "num_ids": writer.encoders[number].num_ids, **by_split}
        entry["multi_valued"] = name in fmt.multi_valued
        entry["weighted"] = number in fmt.weighted
        if counts is not None:
            entry["threshold"] = config.frequency_thresholds.get(name, config.frequency_threshold)
            entry |= {"counts": asdict(counts[number])}
            paths = vocabulary_files(directory / "vocabulary", f"{number:03d}")
            entry["files"] = {path.name: {"bytes": path.stat().st_size, "sha256": digest_of(path)} for path in paths}
        features.append(entry)
    return features


def _sources(layout: Layout, checksums: list[int]) -> list[dict[str, Any]]:
    """Name, role, bytes, lines and checksum of each input file."""
    return [
        {
            "name": source.path.name,
            "role": source.role,
            "bytes": source.size,
            "lines": sum(unit.records for unit in layout.units if unit.source == number),
            "text_crc32": f"{checksums[number]:08x}",
        }
        for number, source in enumerate(layout.sources)
    ]
