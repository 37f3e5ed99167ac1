"""Rows of a file outside of a preparation, by a known encoding: to score them, to evaluate on them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from recpipe.data.dataset import Dataset
from recpipe.data.encoding import Encoding
from recpipe.data.multi_hot import with_multi_hot
from recpipe.data.prepare.assign import Splitter
from recpipe.data.prepare.encode import ShardWriter
from recpipe.data.prepare.example import unseen_value
from recpipe.data.prepare.formats import ENDINGS, make_formats, make_readers
from recpipe.data.prepare.inputs import find_sources
from recpipe.data.prepare.layout import Layout
from recpipe.data.prepare.meter import Meter, to_log
from recpipe.data.prepare.phases import parse_sources
from recpipe.data.prepare.pool import run_all
from recpipe.data.prepare.quarantine import write_quarantine
from recpipe.data.prepare.raw import CARRIED, Format
from recpipe.data.prepare.scale import DenseScale
from recpipe.data.prepare.settings import chunk_size, memory_limit, num_threads
from recpipe.data.prepare.units import Unit
from recpipe.data.prepare.vocabulary import Encoder, HashEncoder, load_encoder
from recpipe.data.prepared import ShardStore, schema_of
from recpipe.data.unseen import UnseenShare, unseen_messages, unseen_shares
from recpipe.errors import ConfigError, DataError
from recpipe.escapes import shown

Log = Callable[[str], None]


@dataclass(frozen=True)
class Given:
    """What became of the rows.

    Args:
        records: the shards, as the manifest of a prepared directory has them.
        bad: lines that were left out.
        unseen: values without an id, by feature.
        columns: the carried columns of the rows, a table of pyarrow; None where none was asked for.
    """

    records: list[dict[str, Any]]
    bad: int = 0
    unseen: list[UnseenShare] = field(default_factory=list)
    columns: Any = None


def encode_given(
    encoding: Encoding,
    reading: Any,
    path: str,
    out: Path,
    log: Log,
    max_bad_share: float = 0.0,
    carried: Sequence[str] = (),
) -> Given:
    """Parses and encodes all lines of a file or a directory; labels may be missing.

    Args:
        encoding: of a checkpoint or of a prepared directory.
        reading: the data settings of the run: what to do with bad values, how much memory there is.
        path: the file.
        out: directory for the result; removed before.
        max_bad_share: share of lines that may be left out; 0: none, since scores are by line.
        carried: columns of the file that are kept as they are.

    Raises:
        ConfigError: the model has no encoding of raw rows.
        DataError: a line cannot be used, or columns are missing.
    """
    _require_values(encoding, path)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    config = encoding.config(reading)
    config = replace(config, format="") if getattr(config, "format", "") else config
    sources = [replace(s, role="test") for s in find_sources(path, "", "", ENDINGS[config.name], "input", log, False)]
    formats, threads, report = make_formats(config, sources, carried, log), num_threads(config), to_log(log)
    size = chunk_size(memory_limit(config.memory_limit), threads)
    with Meter("parse", sum(source.size for source in sources), report) as meter:
        readers = make_readers(config, sources, formats, size, meter.add)
        parsed = parse_sources(readers, formats, out / "raw", threads, meter)
    try:
        bad = write_quarantine(out, sources, formats, parsed.units, max_bad_share, log)
    except DataError as error:
        rule = f"{path}: every line has to get a score, but " if not max_bad_share else ""
        raise DataError(f"{rule}{error}") from None
    layout = Layout.of(sources, parsed.units, Splitter("fraction", 0.0, 0.0, 0))
    (out / "done").mkdir()
    with Meter("write", sum(unit.rows for unit in parsed.units), report) as meter:
        writer = _writer(config, formats[0], layout, encoding, out, meter)
        records = [asdict(one) for one in run_all(lambda shard: writer.write(*shard), writer.shards(), threads)]

    def example(number: int) -> str | None:
        again = make_readers(config, sources, formats, size, lambda count: None)
        return unseen_value(again, formats, writer.encoders[number], number, getattr(config, "separator", ""))

    unseen = _unseen(encoding, records, example)
    for line in unseen_messages(unseen, f"the rows of {path}"):
        log(f"WARNING: {line}; values may be written in another way, as 7.0 for 7")
    return Given(records, bad, unseen, _carried(parsed.units, carried))


def _unseen(
    encoding: Encoding, records: list[dict[str, Any]], example: Callable[[int], str | None]
) -> list[UnseenShare]:
    """Values without an id; with an example where there are many more than expected."""
    features = encoding.manifest["features"]
    kinds = ("ids", "missing", "rare")
    ids, missing, rare = ([sum(r[kind][n] for r in records) for n in range(len(features))] for kind in kinds)
    far = [one.feature for one in unseen_shares(features, ids, missing, rare) if one.is_far]
    names = [feature["name"] for feature in features]
    found = {name: example(names.index(name)) for name in far}
    said = {name: f"such as {shown(value)}" for name, value in found.items() if value is not None}
    return unseen_shares(features, ids, missing, rare, said)


def given_dataset(encoding: Encoding, reading: Any, records: list[dict[str, Any]], out: Path, source: str) -> Dataset:
    """The rows that `encode_given` wrote, as split `test`.

    Args:
        records: of the `Given`.
        out: its directory.
        source: one line on where the rows come from.
    """
    schema, stores = with_multi_hot(reading, schema_of(encoding.manifest), {"test": ShardStore(out, records)})
    return Dataset(schema, stores, source, _strict(reading), 0, encoding=encoding)


def _strict(reading: Any) -> Any:
    """Every line has to get a score: none may be dropped."""
    return replace(reading, non_finite="error") if hasattr(reading, "__dataclass_fields__") else _Strict(reading)


class _Strict:
    """The same settings but for one."""

    def __init__(self, reading: Any) -> None:
        self._reading = reading

    def __getattr__(self, name: str) -> Any:
        return "error" if name == "non_finite" else getattr(self._reading, name)


def _require_values(encoding: Encoding, path: str) -> None:
    """There must be a way from values to ids."""
    if not encoding.encodes:
        raise ConfigError(
            f"{path}: this model was trained on ids that were given (imported .npy files), not on values: it cannot encode "
            f"raw rows. Import the rows with recpipe data import, and give that directory"
        )


def _writer(config: Any, fmt: Format, layout: Layout, encoding: Encoding, out: Path, meter: Meter) -> ShardWriter:
    manifest = encoding.manifest
    check_columns_of(encoding, fmt)
    scales = scales_of(manifest)
    encoders = encoders_of(config, encoding)
    return ShardWriter(
        out, out / "done", layout, scales, encoders, manifest["jagged"], fmt.weighted, config.rows_per_shard, meter
    )


def check_columns_of(encoding: Encoding, fmt: Format) -> None:
    """Raises DataError where a format has other columns than an encoding."""
    for kind, named, found in (("dense", "dense", fmt.dense), ("features", "categorical", fmt.categorical)):
        known = [entry["name"] for entry in encoding.manifest[kind]]
        if known != list(found):
            raise DataError(f"the {named} columns are {', '.join(found)}; those of the model are {', '.join(known)}")


def scales_of(manifest: Any) -> list[DenseScale]:
    """How each dense column is finished, as the manifest says."""
    return [DenseScale.from_json(entry, manifest["transform"]["name"]) for entry in manifest["dense"]]


def encoders_of(config: Any, encoding: Encoding) -> list[Encoder]:
    """From keys to ids, one a categorical column."""
    features = encoding.manifest["features"]
    if encoding.is_hashed:
        return [HashEncoder(config.hash_size, number) for number in range(len(features))]
    return [load_encoder(encoding.place, f"{number:03d}", one["num_ids"], True) for number, one in enumerate(features)]


def _carried(units: Sequence[Unit], names: Sequence[str]) -> Any:
    """The carried columns of all rows, under their own names."""
    if not names:
        return None
    marks = [f"{CARRIED}{name}" for name in names]
    whole = pa.concat_tables([unit.table().select(marks) for unit in units], promote_options="permissive")
    return pa.table([_as_text(column) for column in whole.columns], list(names))


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Bytes of a text file as text; other types as they are."""
    if not pa.types.is_binary(column.type):
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.chunked_array([[one and one.decode("utf-8", "backslashreplace") for one in column.to_pylist()]])
