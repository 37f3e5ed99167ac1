"""What a user should know of prepared rows: columns that say nothing, lose their values, or differ in held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from recpipe.data.prepare.assign import SPLITS, TRAIN
from recpipe.data.prepare.dense_remarks import dense_remarks
from recpipe.data.prepare.encode import ShardRecord, ShardWriter
from recpipe.data.prepare.ranking import FeatureCounts
from recpipe.data.prepare.raw import Format
from recpipe.data.prepare.spread import ColumnSpread
from recpipe.data.unseen import unseen_messages, unseen_shares


def remarks(
    fmt: Format,
    writer: ShardWriter,
    spreads: Sequence[ColumnSpread],
    counts: Sequence[FeatureCounts] | None,
    records: Sequence[ShardRecord],
) -> list[str]:
    """Warnings about prepared rows, one line each.

    Args:
        fmt: of the files.
        writer: has written the rows.
        spreads: what was measured of each dense column.
        counts: what was counted of each feature; None where ids are hashes.
        records: of all shards.
    """
    columns = zip(fmt.dense, writer.scales, spreads, strict=True)
    found = [line for name, scale, spread in columns for line in dense_remarks(name, scale, spread)]
    if counts is not None:
        features = [{"name": n, "counts": asdict(c)} for n, c in zip(fmt.categorical, counts, strict=True)]
        held_out = [record for record in records if record.split != SPLITS[TRAIN]]
        ids, missing, rare = (_sums(held_out, kind, len(features)) for kind in ("ids", "missing", "rare"))
        found += unseen_messages(unseen_shares(features, ids, missing, rare), "held-out rows")
    return found


def _sums(records: Sequence[ShardRecord], kind: str, num_features: int) -> list[int]:
    """A count of the records by feature."""
    return [sum(getattr(record, kind)[number] for record in records) for number in range(num_features)]
