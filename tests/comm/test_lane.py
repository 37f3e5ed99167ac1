"""An all-to-all in pieces brings the same as one in one go, whatever the sizes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from recpipe.bench.wire import Tape, recording
from recpipe.comm import Lane, Traffic
from recpipe.comm import lane as module
from tests.ranks import run_ranks

PIECE = 64


def size(source: int, target: int, world: int) -> int:
    """Distinct, nothing for some, several pieces and a bit for others."""
    return 0 if (source + target) % 4 == 3 else 31 * (1 + source * world + target)


def exchange(rank: int, world: int, dtype: torch.dtype, largest: int) -> tuple[torch.Tensor, int, list[tuple[str, int]]]:
    module.PIECE_BYTES = PIECE
    traffic, tape = Traffic(), Tape()
    lane = Lane(dist.new_group(), rank, world, traffic, "rows")
    sends, receives = ([f(k) for k in range(world)] for f in (lambda k: size(rank, k, world), lambda k: size(k, rank, world)))
    message = torch.cat([torch.arange(n).add(100 * rank + 10 * k) for k, n in enumerate(sends)]).to(dtype)
    with recording(tape):
        # Two at once: pieces of the second must not land in the first.
        first = lane.all_to_all(message, sends, receives, largest=largest)
        second = lane.all_to_all(message + 1, sends, receives, largest=largest)
        got = torch.stack([first.wait(), second.wait()])
    return got, traffic.total("rows"), [(call.name, call.tensors[0][0] * message.element_size()) for call in tape.calls]


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pieces_bring_what_one_message_brings(world, dtype):
    whole, cut = (run_ranks(exchange, world, dtype, largest) for largest in (0, 31 * world * world))
    for rank, ((expected, bytes_whole, calls_whole), (got, bytes_cut, calls)) in enumerate(zip(whole, cut, strict=True)):
        assert torch.equal(got, expected) and not torch.equal(got[0], got[1])
        assert bytes_cut == bytes_whole > 0
        assert [name for name, _ in calls_whole] == ["all_to_all_single"] * 2
        sent = [num_bytes for name, num_bytes in calls if name == "isend"]
        assert max(sent) <= PIECE and sum(sent) == bytes_cut
        assert sum(name == "irecv" for name, _ in calls) == 2 * sum(
            -(-size(peer, rank, world) * got.element_size() // PIECE) for peer in range(world) if peer != rank
        )


def test_small_messages_go_in_one():
    assert {name for name, _ in run_ranks(exchange, 2, torch.float32, PIECE // 4)[0][2]} == {"all_to_all_single"}
