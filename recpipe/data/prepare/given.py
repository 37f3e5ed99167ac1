"""Rows of a file to score, by the vocabularies and scales of an earlier preparation: every line becomes one row, in order."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from recpipe.data.dataset import Dataset
from recpipe.data.prepare.assign import Splitter
from recpipe.data.prepare.encode import ShardRecord, ShardWriter
from recpipe.data.prepare.formats import ENDINGS, make_formats, make_readers
from recpipe.data.prepare.inputs import find_sources
from recpipe.data.prepare.layout import Layout
from recpipe.data.prepare.meter import Meter, to_log
from recpipe.data.prepare.phases import parse_sources
from recpipe.data.prepare.pool import run_all
from recpipe.data.prepare.quarantine import write_quarantine
from recpipe.data.prepare.raw import Format
from recpipe.data.prepare.scale import DenseScale
from recpipe.data.prepare.settings import chunk_size, memory_limit, num_threads
from recpipe.data.prepare.vocabulary import Encoder, HashEncoder, load_encoder
from recpipe.data.prepared import ShardStore, read_manifest, schema_of
from recpipe.errors import DataError

Log = Callable[[str], None]


def encode_given(config: Any, path: str, trained: Path, out: Path, log: Log) -> list[ShardRecord]:
    """Parses and encodes all lines of a file or a directory; labels may be missing.

    Args:
        config: attributes of `CriteoData` or `TableData`, as for the training rows.
        path: the file.
        trained: the prepared directory of the training rows.
        out: directory for the result; removed before.

    Raises:
        DataError: a line cannot be used (scores are by line, so none may be left out), or other columns.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    sources = [replace(s, role="test") for s in find_sources(path, "", "", ENDINGS[config.name], "input")]
    formats, threads, report = make_formats(config, sources), num_threads(config), to_log(log)
    size = chunk_size(memory_limit(config.memory_limit), threads)
    with Meter("parse", sum(source.size for source in sources), report) as meter:
        readers = make_readers(config, sources, formats, size, meter.add)
        parsed = parse_sources(readers, formats, out / "raw", threads, meter)
    try:
        write_quarantine(out, sources, formats, parsed.units, 0.0, log)
    except DataError as error:
        raise DataError(f"{path}: every line has to get a score, but {error}") from None
    layout = Layout.of(sources, parsed.units, Splitter("fraction", 0.0, 0.0, 0))
    (out / "done").mkdir()
    with Meter("write", sum(unit.rows for unit in parsed.units), report) as meter:
        writer = _writer(config, formats[0], layout, read_manifest(trained), trained, out, meter)
        return run_all(lambda shard: writer.write(*shard), writer.shards(), threads)


def given_dataset(config: Any, records: list[dict[str, Any]], trained: Path, out: Path, path: str) -> Dataset:
    """The rows that `encode_given` wrote, as split `test`.

    Args:
        records: what it returned, as dicts.
    """
    schema = schema_of(read_manifest(trained))
    return Dataset(schema, {"test": ShardStore(out, records)}, f"{path}, by the vocabularies of {trained}", config, 0)


def as_dicts(records: list[ShardRecord]) -> list[dict[str, Any]]:
    """Records as JSON has them."""
    return [asdict(record) for record in records]


def _writer(
    config: Any, fmt: Format, layout: Layout, manifest: dict[str, Any], trained: Path, out: Path, meter: Meter
) -> ShardWriter:
    dense, features = manifest["dense"], manifest["features"]
    if [entry["name"] for entry in dense] != list(fmt.dense) or [f["name"] for f in features] != list(fmt.categorical):
        raise DataError(f"the columns of the file are not those of {trained}")
    scales = [DenseScale.from_json(entry, manifest["transform"]["name"]) for entry in dense]
    encoders: list[Encoder] = [
        HashEncoder(config.hash_size, number)
        if manifest["vocabulary"]["kind"] == "hash"
        else load_encoder(trained / "vocabulary", f"{number:03d}", feature["num_ids"], True)
        for number, feature in enumerate(features)
    ]
    return ShardWriter(
        out, out / "done", layout, scales, encoders, manifest["jagged"], fmt.weighted, config.rows_per_shard, meter
    )
