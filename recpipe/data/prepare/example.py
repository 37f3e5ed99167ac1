"""A raw value that a vocabulary does not have, for a message: files keep values, prepared rows only ids."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import pyarrow as pa

from recpipe.data.prepare.chunks import Reader
from recpipe.data.prepare.columns import one_array
from recpipe.data.prepare.raw import Format
from recpipe.data.prepare.strings import split_values
from recpipe.data.prepare.vocabulary import RARE, Encoder

CHUNKS = 8


def unseen_value(
    readers: Sequence[Reader], formats: Sequence[Format], encoder: Encoder, number: int, separator: str
) -> str | None:
    """An unseen value of a categorical column among the first chunks of some files; None where there is none.

    Args:
        readers: fresh ones.
        formats: of their files.
        encoder: of the column.
        number: of the column among the categorical ones.
        separator: between several values.
    """
    for reader in readers:
        for chunk in islice(iter(reader.next, None), CHUNKS):
            fmt = formats[reader.source]
            try:
                columns = chunk.data if isinstance(chunk.data, pa.Table) else fmt.read(chunk.data)
            except pa.ArrowInvalid:
                continue
            found = _in_chunk(columns, fmt, encoder, number, separator)
            if found is not None:
                return found
    return None


def _in_chunk(columns: pa.Table, fmt: Format, encoder: Encoder, number: int, separator: str) -> str | None:
    name = fmt.categorical[number]
    keys = one_array(fmt.convert(columns).table.column(1 + len(fmt.dense) + number))
    texts = one_array(columns[name.removesuffix("_bucket") if name not in columns.column_names else name])
    if pa.types.is_list(keys.type):
        keys, texts = keys.flatten(), split_values(texts, separator).flatten()
    ids = encoder.encode(np.asarray(keys.fill_null(0)))
    unseen = np.flatnonzero((ids == RARE) & ~np.asarray(keys.is_null()))
    if not len(unseen):
        return None
    value = texts[int(unseen[0])].as_py()
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
