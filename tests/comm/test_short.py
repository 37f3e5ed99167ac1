"""Sums in two rounds with 16 bits on the wire: the same on all ranks bit for bit, rounded once a term and once a sum."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from recpipe.comm import GradientReducer, ShortLane, Traffic
from recpipe.comm.traffic import Message
from tests.ranks import run_ranks

SIZES = [1, 3, 8, 1001]
ROUNDING = 2.0**-8


def make_lane(rank: int, world: int, traffic: Traffic) -> ShortLane:
    return ShortLane(dist.new_group(), dist.new_group(), rank, world, traffic, "dense", torch.bfloat16)


def terms(rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(size, generator=generator) for size in SIZES]


def sum_all(rank: int, world: int) -> tuple[list[torch.Tensor], dict[str, int]]:
    """All sums under way at once."""
    traffic = Traffic()
    lane = make_lane(rank, world, traffic)
    pending = [lane.all_reduce(tensor) for tensor in terms(rank)]
    return [one.wait() for one in pending], dict(traffic.sent)


@pytest.mark.parametrize("world", [2, 4])
def test_sums_are_equal_on_all_ranks_and_off_by_rounding_alone(world):
    found = run_ranks(sum_all, world)
    for i, size in enumerate(SIZES):
        parts = torch.stack([terms(rank)[i] for rank in range(world)]).double()
        exact, mine = parts.sum(0), found[0][0][i].double()
        assert ((mine - exact).abs() <= ROUNDING * (parts.abs().sum(0) + exact.abs())).all()
        assert torch.equal(mine.bfloat16().double(), mine)
        assert size < 8 or not torch.equal(mine.float(), exact.float())
        assert all(torch.equal(sums[i], found[0][0][i]) for sums, _ in found)
    pieces = sum(-(-size // world) for size in SIZES)
    assert all(sent == {"dense": 2 * (world - 1) * pieces * 2} for _, sent in found)


def sum_small_onto_large(rank: int, world: int) -> torch.Tensor:
    lane = make_lane(rank, world, Traffic())
    return lane.all_reduce(torch.full((8,), 0.5 if rank else 256.0)).wait()


def test_terms_are_added_in_32_bits():
    # 257.5 lies nearer to 258 than to 256; in 16 bits 256 + 0.5 is 256, three times over.
    assert all(found.tolist() == [258.0] * 8 for found in run_ranks(sum_small_onto_large, 4))


def test_alone_nothing_is_rounded():
    lane = ShortLane(None, None, 0, 1, Traffic(), "dense", torch.bfloat16)
    assert torch.equal(lane.all_reduce(torch.tensor([1 / 3])).wait(), torch.tensor([1 / 3]))


def reduce_gradients(rank: int, world: int) -> list[torch.Tensor]:
    """Two backwards; buckets of one parameter each leave during the second."""
    torch.manual_seed(0)
    tower = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    reducer = GradientReducer(tower.parameters(), make_lane(rank, world, Traffic()), bucket_bytes=1)
    torch.manual_seed(rank + 1)
    reducer.begin(2)
    for _ in range(2):
        tower(torch.randn(4, 5)).square().sum().backward()
        reducer.backward_done()
    reducer.finish()
    return [parameter.grad for parameter in tower.parameters()]


def test_buckets_that_leave_during_the_last_backward():
    found = run_ranks(reduce_gradients, 4)
    alone = [gradients_of(rank) for rank in range(4)]
    for i, mine in enumerate(found[0]):
        parts = torch.stack([gradients[i] for gradients in alone])
        assert ((mine - parts.sum(0)).abs() <= 1.01 * ROUNDING * (parts.abs().sum(0) + parts.sum(0).abs())).all()
        assert all(torch.equal(mine, gradients[i]) for gradients in found)


def gradients_of(rank: int) -> list[torch.Tensor]:
    """The gradients of one rank."""
    torch.manual_seed(0)
    tower = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    torch.manual_seed(rank + 1)
    for _ in range(2):
        tower(torch.randn(4, 5)).square().sum().backward()
    return [parameter.grad for parameter in tower.parameters()]


def record_one(rank: int, world: int) -> Message:
    traffic = Traffic()
    lane = make_lane(rank, world, traffic)
    traffic.recording, traffic.label = True, "the step's end"
    lane.all_reduce(torch.ones(6)).wait()
    [message] = traffic.messages
    return message


def test_both_rounds_are_recorded_as_one_message():
    for message in run_ranks(record_one, 2):
        assert (message.purpose, message.num_bytes, message.label) == ("dense", 12, "the step's end")
        assert message.done > message.issued
        assert len(message.waits) == 1


def break_second_round(rank: int, world: int) -> str:
    lane = make_lane(rank, world, Traffic())

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("Connection closed by peer")

    dist.all_gather_single = fail
    with pytest.raises(RuntimeError) as caught:
        lane.all_reduce(torch.ones(6)).wait()
    return str(caught.value)


def test_what_fails_between_the_rounds_is_told_to_whoever_waits():
    assert run_ranks(break_second_round, 2) == ["Connection closed by peer"] * 2
