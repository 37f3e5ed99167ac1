"""Every bold formula of the schedule table, against simulation."""

from __future__ import annotations

import pytest

from recpipe.schedule.assemble import assemble
from recpipe.schedule.cost import Cost
from recpipe.schedule.families.base import Request
from recpipe.schedule.metrics import Metrics, live_at
from recpipe.schedule.simulate import simulate
from tests.schedule.cases import measured

RATIOS = [(1, 1, 1), (1, 1.2, 0.8), (2, 2, 1), (1, 1.5, 1)]
CHUNKS = [2, 3]
SIZES = [(p, m) for p in (2, 4, 8) for m in (p, p + 1, 2 * p - 1, 2 * p, 3 * p, 4 * p)]


def run(name: str, p: int, m: int, times: tuple[float, float, float], v: int = 2) -> Metrics:
    return measured(assemble(name, Request(p, m, v)), Cost(*times))


def flush(metrics: Metrics) -> float:
    return max(rank.flush for rank in metrics.ranks)


def window(metrics: Metrics) -> float:
    return max(rank.window for rank in metrics.ranks)


def peaks(metrics: Metrics) -> list[float]:
    return [rank.peak_activations for rank in metrics.ranks]


near = pytest.approx


@pytest.mark.parametrize("times", RATIOS)
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_gpipe(p: int, m: int, times: tuple[float, float, float]) -> None:
    metrics = run("gpipe", p, m, times)
    assert flush(metrics) == near((p - 1) * sum(times))
    assert peaks(metrics) == [m] * p


@pytest.mark.parametrize("times", RATIOS)
@pytest.mark.parametrize(("p", "m"), [*SIZES, (4, 1), (4, 3), (8, 2)])
def test_1f1b(p: int, m: int, times: tuple[float, float, float]) -> None:
    metrics = run("1f1b", p, m, times)
    assert flush(metrics) == near((p - 1) * sum(times))
    assert peaks(metrics) == [min(p - r, m) for r in range(p)]


@pytest.mark.parametrize("v", CHUNKS)
@pytest.mark.parametrize("times", RATIOS)
@pytest.mark.parametrize(("p", "m"), [(p, m) for p, m in SIZES if m % p == 0])
def test_interleaved(p: int, m: int, times: tuple[float, float, float], v: int) -> None:
    metrics = run("interleaved", p, m, times, v)
    assert flush(metrics) == near((p - 1) * sum(times) / v)
    if m >= 2 * p:
        assert peaks(metrics) == near([((v - 1) * p + 2 * (p - 1 - r) + 1) / v for r in range(p)])


@pytest.mark.parametrize("v", CHUNKS)
@pytest.mark.parametrize("times", RATIOS)
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_looped_bfs(p: int, m: int, times: tuple[float, float, float], v: int) -> None:
    metrics = run("looped_bfs", p, m, times, v)
    assert flush(metrics) == near((p - 1) * sum(times) / v)
    assert peaks(metrics) == [m] * p


@pytest.mark.parametrize("times", RATIOS)
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_zb_h1(p: int, m: int, times: tuple[float, float, float]) -> None:
    f, i, w = times
    metrics = run("zb_h1", p, m, times)
    assert flush(metrics) == near((p - 1) * (f + i - w))
    assert peaks(metrics) == [p] * p


@pytest.mark.parametrize("times", RATIOS)
@pytest.mark.parametrize(("p", "m"), [(p, m) for p, m in SIZES if m >= 2 * p - 1])
def test_zb_h2(p: int, m: int, times: tuple[float, float, float]) -> None:
    f, i, w = times
    metrics = run("zb_h2", p, m, times)
    assert window(metrics) == near((p - 1) * max(0, f + i - 2 * w))
    assert flush(metrics) == near((p - 1) * max(f, f + i - 2 * w))
    assert max(peaks(metrics)) == 2 * p - 1


@pytest.mark.parametrize("v", CHUNKS)
@pytest.mark.parametrize("times", RATIOS)
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_interleaved_zb(p: int, m: int, times: tuple[float, float, float], v: int) -> None:
    f, i, w = times
    metrics = run("interleaved_zb", p, m, times, v)
    if m % p == 0:
        assert flush(metrics) == near((p - 1) * (f + i - w) / v)
    assert max(peaks(metrics)) == near(p)


@pytest.mark.parametrize("times", RATIOS)
@pytest.mark.parametrize(("p", "m"), [(p, m) for p, m in SIZES if m >= 2 * p])
def test_zbv(p: int, m: int, times: tuple[float, float, float]) -> None:
    metrics = run("zbv", p, m, times)
    if len(set(times)) == 1:
        assert window(metrics) == near(0)
        assert flush(metrics) == near((p - 1) * times[0] / 2)
    assert max(peaks(metrics)) == near(p)


@pytest.mark.parametrize("depth", [4, 6, 8, 16])
def test_chimera_at_n_equals_d(depth: int) -> None:
    equal = run("chimera", depth, depth, (1, 0.5, 0.5))
    assert [rank.flush for rank in equal.ranks] == near([depth - 2] * depth)
    assert equal.bubble_ratio == near((depth - 2) / (2 * depth + depth - 2))
    double = run("chimera", depth, depth, (1, 1, 1))
    assert double.bubble_ratio == near((depth - 2) / (3 * depth / 2 + depth - 2))
    half = depth // 2
    assert peaks(equal)[:half] == list(range(half + 1, depth + 1))
    assert peaks(equal)[half:] == peaks(equal)[:half][::-1]
    assert equal.weight_copies == 2


@pytest.mark.parametrize(("depth", "slots"), [(8, [6, 2, 0]), (16, [14, 6, 2, 0])])
def test_chimera_pipelines(depth: int, slots: list[int]) -> None:
    for k, idle in enumerate(slots):
        made = assemble("chimera", Request(depth, depth, pipelines=2 * 2**k))
        metrics = measured(made, Cost(1, 0.5, 0.5))
        assert [rank.flush for rank in metrics.ranks] == near([idle] * depth)
        assert idle == depth / 2**k - 2
        assert metrics.weight_copies == 2 * 2**k


@pytest.mark.parametrize("times", RATIOS)
@pytest.mark.parametrize(("p", "m"), [(p, m) for p in (2, 4, 8) for m in (2 * p, 2 * p + 2, 4 * p)])
def test_dualpipe(p: int, m: int, times: tuple[float, float, float]) -> None:
    f, i, w = times
    metrics = run("dualpipe", p, m, times)
    formula = (p / 2 - 1) * (f + (i + w) + (i + w) - 3 * w)
    assert flush(metrics) == near(formula) if f == i else flush(metrics) <= formula + 1e-9
    assert max(peaks(metrics)) == p + 1
    assert metrics.weight_copies == 2


@pytest.mark.parametrize("times", RATIOS)
@pytest.mark.parametrize(("p", "m"), [(p, m) for p in (2, 4, 8) for m in (2 * p, 2 * p + 1, 4 * p)])
def test_dualpipev(p: int, m: int, times: tuple[float, float, float]) -> None:
    f, i, w = (time / 2 for time in times)
    metrics = run("dualpipev", p, m, times)
    formula = (p - 1) * (f + (i + w) + (i + w) - 3 * w)
    assert flush(metrics) == near(formula) if f == i else flush(metrics) <= formula + 1e-9
    assert max(peaks(metrics)) == near((2 * p + 1) / 2)
    assert metrics.weight_copies == 1


@pytest.mark.parametrize("n", [2, 4, 8])
def test_cyclic_holds_a_constant_number_of_activations(n: int) -> None:
    made = assemble("cyclic", Request(n, n), steps=4)
    timeline = simulate(made, Cost(1, 0.5, 0.5))
    assert made.lag == 1
    steady = range(2 * n, 6 * n)
    assert {live_at(timeline, slot + 0.5) for slot in steady} == {n * (n + 1) // 2}
    assert timeline.makespan == 4 * 2 * n + 2 * (n - 1)  # work, and the stagger once: no bubble in steady state
    for rank in measured(made, Cost(1, 0.5, 0.5)).ranks:
        assert rank.window == near(0)
    together = assemble("cyclic", Request(n, n))
    assert sum(rank.peak_activations for rank in measured(together, Cost()).ranks) == n * n


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize(
    ("name", "messages"),
    [
        *((name, lambda p: 2 * (p - 1)) for name in ("gpipe", "1f1b", "zb_h1", "zb_h2", "chimera", "dualpipe")),
        *((name, lambda p: 2 * (2 * p - 1)) for name in ("interleaved", "looped_bfs", "interleaved_zb")),
        *((name, lambda p: 2 * (2 * p - 2)) for name in ("zbv", "dualpipev")),
    ],
)
def test_bytes_of_a_microbatch(name: str, messages: object, p: int) -> None:
    m = 2 * p
    metrics = measured(assemble(name, Request(p, m)), Cost(activation_bytes=10))
    assert callable(messages)
    assert sum(metrics.bytes_per_link.values()) == near(10 * m * messages(p))
