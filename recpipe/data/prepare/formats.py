"""Which format each input file has, found out before the work starts."""

from __future__ import annotations

from typing import Any

from recpipe.data.prepare.criteo import FIELDS, CriteoFormat, field_count
from recpipe.data.prepare.inputs import Source
from recpipe.data.prepare.raw import Format
from recpipe.data.prepare.streams import head
from recpipe.errors import DataError

ENDINGS = {"criteo": ("", ".txt", ".tsv", ".csv"), "table": (".csv", ".tsv", ".txt", ".parquet")}


def make_formats(config: Any, sources: list[Source]) -> list[Format]:
    """One format a file.

    Raises:
        DataError: a file is empty, or not in the format, or has no labels where it needs them.
    """
    return [_criteo(config, source) for source in sources]


def _criteo(config: Any, source: Source) -> Format:
    """40 fields with a label, 39 without."""
    sample = head(source.path)
    if not sample.strip():
        raise DataError(f"{source.path} holds no rows")
    fields = field_count(sample)
    if fields not in (FIELDS, FIELDS - 1):
        raise DataError(
            f"{source.path} is not in the Criteo format: its lines have {fields} tab-separated fields, "
            f"expected {FIELDS} (label, 13 integers, 26 hex values) or {FIELDS - 1} (no label); "
            f"data=table reads other files"
        )
    labelled = fields == FIELDS
    if not labelled and source.role != "test":
        raise DataError(
            f"{source.path} has no labels ({fields} fields a line, labelled lines have {FIELDS}): "
            f"it cannot be trained or validated on; to score it, give it as data.test_path"
        )
    return CriteoFormat(config.dense_transform, config.dense_missing, labelled, config.dense_ids)
