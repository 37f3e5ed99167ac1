"""`mesh.feed=everyone`: every rank of a replica reads its part of each consumer's rows and hands it on.

Input work is then even over ranks, at the price of sending each row once. Two collectives a step: sizes, then contents;
a step's sizes travel two steps ahead of its use and its contents one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from recpipe.batch import Batch, join_batches
from recpipe.comm import Lane, Pending
from recpipe.errors import TrainingError

_HEADER = 6


@dataclass(frozen=True)
class _Announced:
    """Parts whose sizes are under way."""

    pieces: Sequence[Batch | None]
    sizes: Pending


@dataclass(frozen=True)
class _Sent:
    """Parts whose contents are under way.

    Args:
        headers: sizes of what each rank sends here.
        num_bytes: of each rank's contents.
    """

    headers: list[list[int]]
    num_bytes: list[int]
    contents: Pending


class HandOn:
    """Turns what each rank read into what each consumer trains on; collective, in the same order on every rank.

    Args:
        lane: communication over all ranks.
        num_features, num_dense: columns.
    """

    def __init__(self, lane: Lane, num_features: int, num_dense: int) -> None:
        self._lane, self._num_features, self._num_dense = lane, num_features, num_dense

    def batches(self, parts: Iterable[dict[int, Batch]], empty: Batch) -> Iterator[Batch]:
        """One batch a step: the joined parts of a consumer, `empty` elsewhere.

        Args:
            parts: for each step what this rank read, by the rank of the consumer that it is for.
        """
        announced: _Announced | None = None
        sent: _Sent | None = None
        for part in chain(parts, [None, None]):
            following = None if part is None else self._announce(part)
            sending = None if announced is None else self._send(announced)
            if sent is not None:
                yield self._receive(sent, empty)
            announced, sent = following, sending

    def _announce(self, part: dict[int, Batch]) -> _Announced:
        pieces = [part.get(rank) for rank in range(self._lane.world)]
        headers = torch.tensor([_header(piece) for piece in pieces]).flatten()
        even = [_HEADER] * self._lane.world
        return _Announced(pieces, self._lane.all_to_all(headers, even, even))

    def _send(self, announced: _Announced) -> _Sent:
        headers = announced.sizes.wait().view(-1, _HEADER).tolist()
        for other, header in enumerate(headers):
            _check(self._lane.rank, other, header)
        outgoing = [_packed(piece) for piece in announced.pieces]
        sizes = [self._num_bytes(header) for header in headers]
        contents = self._lane.all_to_all(torch.cat(outgoing), [part.numel() for part in outgoing], sizes)
        return _Sent(headers, sizes, contents)

    def _receive(self, sent: _Sent, empty: Batch) -> Batch:
        runs = zip(sent.headers, sent.contents.wait().split(sent.num_bytes), strict=True)
        found = [self._unpacked(header, run) for header, run in runs if header[0] or header[3]]
        return join_batches(found, self._num_features) if found else empty

    def _num_bytes(self, header: Sequence[int]) -> int:
        num_rows, num_ids, _, _, flags = header[:5]
        has_weights = flags & 1
        return num_rows * 4 * (self._num_dense + self._num_features + 1) + num_ids * (8 + 4 * has_weights)

    def _unpacked(self, header: Sequence[int], content: torch.Tensor) -> Batch:
        num_rows, num_ids, first_row, num_dropped, flags = header[:5]
        has_weights, one_hot = flags & 1, flags >> 1
        sizes = [8 * num_ids, 4 * num_rows * self._num_dense, 4 * num_rows * self._num_features, 4 * num_rows]
        ids, dense, lengths, labels, weights = content.split([*sizes, 4 * num_ids * has_weights])
        return Batch(
            dense_BD=dense.clone().view(torch.float32).view(num_rows, self._num_dense),
            ids_N=ids.clone().view(torch.int64),
            lengths_FB=lengths.clone().view(torch.int32),
            labels_B=labels.clone().view(torch.float32),
            weights_N=weights.clone().view(torch.float32) if has_weights else None,
            one_hot=bool(one_hot),
            first_row=first_row,
            num_dropped=num_dropped,
        )


def _header(piece: Batch | None) -> list[int]:
    if piece is None:
        return [0] * _HEADER
    flags = (piece.weights_N is not None) + 2 * piece.one_hot
    sizes = [piece.num_rows, piece.ids_N.numel(), piece.first_row, piece.num_dropped, flags]
    return [*sizes, sum(sizes)]


def _check(rank: int, other: int, header: Sequence[int]) -> None:
    """Raises TrainingError where the sizes that `other` announced do not have the sum that it sent with them."""
    *sizes, said = header
    if sum(sizes) != said or min(sizes) < 0:
        raise TrainingError(
            f"rank {other} announced a part of data with the sum {said} to rank {rank}, where its sizes add up to "
            f"{sum(sizes)}: a size was changed on its way or in memory; go on from the last checkpoint"
        )


def _packed(piece: Batch | None) -> torch.Tensor:
    if piece is None or not piece.num_rows:
        return torch.empty(0, dtype=torch.uint8)
    columns = [piece.ids_N, piece.dense_BD, piece.lengths_FB, piece.labels_B]
    columns += [] if piece.weights_N is None else [piece.weights_N]
    # An empty tensor may have any stride, and torch views none but that of 1 as bytes.
    filled = [column.contiguous().flatten().view(torch.uint8) for column in columns if column.numel()]
    return torch.cat([torch.empty(0, dtype=torch.uint8), *filled])
