"""The manifest of a prepared directory as readers may rely on it: it may come from a stranger, or from a remote place."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from recpipe.data.config import TRANSFORMS
from recpipe.data.dataset import SPLITS
from recpipe.data.paths import AnyPath
from recpipe.data.prepare.inputs import MANIFEST
from recpipe.data.prepare.manifest import FORMAT
from recpipe.errors import DataError
from recpipe.escapes import shown
from recpipe.untrusted import Source, Value

_CURE = "prepare the data again"
_KINDS = ("dense", "ids", "labels", "lengths", "weights")
_COUNTED = ("ids", "missing", "rare")
_MOST_IDS, _MOST_COLUMNS = 2**48, 1 << 20
_TOP = ("digest", "rows", "lines", "bad_lines", "rows_per_shard", "jagged", "dense", "transform", "vocabulary")


def read_manifest(directory: AnyPath) -> dict[str, Any]:
    """The manifest of a prepared directory.

    Raises:
        DataError: there is none, or it is damaged or of another format.
    """
    path = directory / MANIFEST
    try:
        if not path.is_file():
            hint = " (an unfinished preparation lies beside it)" if Path(f"{directory}.partial").exists() else ""
            raise DataError(f"{directory} is not a prepared directory: it has no {MANIFEST}{hint}")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    manifest = Source(path, DataError, _CURE, large=True, non_finite=True).json()
    found = manifest.get("format")
    if found is None or found.raw != FORMAT:
        shape = shown(None if found is None else found.raw)
        raise DataError(f"{path} has format {shape}, this version reads {FORMAT}; {_CURE}")
    _check(manifest)
    return dict(manifest.raw)


def _check(manifest: Value) -> None:
    """Raises DataError where a part that readers look at is missing or of another type."""
    known = manifest.fields((*_TOP, "features", "shards", "provenance"))
    known["digest"].text()
    rows = _by_split(known["rows"])
    for name in ("lines", "bad_lines", "rows_per_shard"):
        known[name].integer()
    known["jagged"].flag()
    for column in known["dense"].items(most=_MOST_COLUMNS):
        _check_column(column, known["transform"]["name"])
    for name in ("name", "formula"):
        known["transform"][name].text()
    _check_vocabulary(known["vocabulary"])
    features = known["features"].items(most=_MOST_COLUMNS)
    for feature in features:
        _check_feature(feature)
    twice = [name for name, count in Counter(one["name"].raw for one in features).items() if count > 1]
    if twice:
        raise known["features"].wrong(f"have {shown(twice[0])} twice")
    _check_shards(known["shards"], rows, len(features), known["jagged"].raw)
    _check_provenance(known["provenance"])
    if "origin" in known:
        known["origin"]["directory"].text()
        for digest in known["origin"]["rows"].fields().values():
            digest.text(most=64)


def _by_split(value: Value) -> dict[str, int]:
    return {split: one.integer() for split, one in value.fields(SPLITS, ()).items()}


def _check_column(column: Value, default: Value) -> None:
    """A column in units of its deviation needs both numbers: without them its values would be others."""
    column["name"].text()
    for name in ("min", "max"):
        column[name].is_number_or_null()
    column["missing_share"].number(0, 1)
    transform = column.get("transform") or default
    for name in ("mean", "deviation"):
        value = column[name] if transform.raw == "standardize" else column.get(name)
        if value is not None:
            value.number()
    if column.get("transform") is not None:
        column["transform"].text(TRANSFORMS)
    because = column.get("because")
    if because is not None and because.raw is not None:
        because.text()


def _check_vocabulary(vocabulary: Value) -> None:
    if vocabulary["kind"].text(("hash", "frequency")) == "hash":
        vocabulary["size"].integer(1, _MOST_IDS)
    else:
        vocabulary["threshold"].integer()


def _check_feature(feature: Value) -> None:
    feature["name"].text()
    feature["num_ids"].integer(0, _MOST_IDS)
    feature["weighted"].flag()
    for kind in _COUNTED:
        _by_split(feature[kind])
    counts = feature.get("counts")
    for name, value in counts.fields(("covered", "lookups")).items() if counts is not None else ():
        if name != "top_share":
            value.number(0)
    files = feature.get("files")
    for name, file in files.fields().items() if files is not None else ():
        Value(name, file.source, file.place).name()
        file["bytes"].integer()
        file["sha256"].text(most=64)


def _check_shards(shards: Value, rows: dict[str, int], num_features: int, jagged: bool) -> None:
    totals = dict.fromkeys(SPLITS, 0)
    kinds = [kind for kind in _KINDS[:4] if kind != "lengths" or jagged]
    for shard in shards.items():
        totals[shard["split"].text(SPLITS)] += shard["rows"].integer()
        shard["index"].integer()
        for file in shard["files"].fields(kinds, _KINDS).values():
            file["name"].name()
            file["bytes"].integer()
            file["sha256"].text(most=64)
        for kind in _COUNTED:
            for count in shard[kind].items(num_features):
                count.integer()
    # What travels with a checkpoint is the manifest without shards.
    if shards.raw and totals != rows:
        raise shards.wrong(f"have {totals} rows, the manifest says {rows}")


def _check_provenance(provenance: Value) -> None:
    provenance["settings"].fields()
    warnings = provenance.get("warnings")
    for text in warnings.items() if warnings is not None else ():
        text.text()
    for source in provenance["sources"].items():
        for name in ("name", "role"):
            source[name].text()
        for name in ("bytes", "lines"):
            source[name].integer()
