"""What a user should know of prepared rows: columns that say nothing, lose their values, or differ in held-out rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from recpipe.data.prepare.assign import SPLITS, TRAIN
from recpipe.data.prepare.dense_remarks import dense_remarks
from recpipe.data.prepare.encode import ShardRecord, ShardWriter
from recpipe.data.prepare.layout import Layout
from recpipe.data.prepare.ranking import FeatureCounts
from recpipe.data.prepare.raw import Format
from recpipe.data.prepare.spread import ColumnSpread
from recpipe.data.prepare.value_remarks import form_remarks, samples_of, unseen_example
from recpipe.data.unseen import unseen_messages, unseen_shares


@dataclass(frozen=True)
class Prepared:
    """All that is known of prepared rows.

    Args:
        config: attributes of `CriteoData` or `TableData`.
        layout: rows by chunk and split.
        fmt: of the files.
        writer: has written the rows.
        spreads: what was measured of each dense column.
        counts: what was counted of each feature; None where ids are hashes.
        records: of all shards.
    """

    config: Any
    layout: Layout
    fmt: Format
    writer: ShardWriter
    spreads: Sequence[ColumnSpread]
    counts: Sequence[FeatureCounts] | None
    records: Sequence[ShardRecord]

    def remarks(self) -> list[str]:
        """Warnings, one line each."""
        columns = zip(self.fmt.dense, self.writer.scales, self.spreads, strict=True)
        dense = [line for name, scale, spread in columns for line in dense_remarks(name, scale, spread)]
        return [*dense, *self._forms(), *self._unseen()]

    def _separator(self, name: str) -> str | None:
        """What joins several values of a field; None for a column of one value a field."""
        return str(self.config.separator) if name in self.fmt.multi_valued else None

    def _texts(self, column: int, held_out: bool) -> list[str]:
        return samples_of(self.layout.sources, self.layout.units, column, held_out)

    def _forms(self) -> Iterator[str]:
        for number, name in enumerate(self.fmt.categorical):
            longest = max((record.longest[number] for record in self.records if record.longest), default=1)
            yield from form_remarks(name, self._texts(number, held_out=False), self._separator(name), longest)

    def _unseen(self) -> list[str]:
        """Features whose values in held-out rows have no id far more often than expected."""
        if self.counts is None:
            return []
        features = [{"name": n, "counts": asdict(c)} for n, c in zip(self.fmt.categorical, self.counts, strict=True)]
        held_out = [record for record in self.records if record.split != SPLITS[TRAIN]]
        ids, missing, rare = (_sums(held_out, kind, len(features)) for kind in ("ids", "missing", "rare"))
        shares = unseen_shares(features, ids, missing, rare)
        examples = {
            name: self._example(number) for number, name in enumerate(self.fmt.categorical) if shares[number].is_far
        }
        return unseen_messages(unseen_shares(features, ids, missing, rare, examples), "held-out rows")

    def _example(self, number: int) -> str:
        texts = self._texts(number, held_out=True) or self._texts(number, held_out=False)
        separator = self._separator(self.fmt.categorical[number])
        return unseen_example(self.fmt, self.writer.encoders[number], texts, separator)


def _sums(records: Sequence[ShardRecord], kind: str, num_features: int) -> list[int]:
    """A count of the records by feature."""
    return [sum(getattr(record, kind)[number] for record in records) for number in range(num_features)]
