"""What a user reads: the terminal report, the page, and the message when nothing fits."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser

import pytest

from recpipe.planner.build import to_plan
from recpipe.planner.infeasible import explain_misfit, more_nodes
from recpipe.planner.problem import Problem, Scope
from recpipe.planner.report.facts import facts
from recpipe.planner.report.html import page
from recpipe.planner.report.sensitivity import what_if
from recpipe.planner.report.terminal import WIDTH, render
from recpipe.planner.search import search
from recpipe.planner.table_costs import Allowed
from tests.planner import small

SCOPE = Scope((), (2, 4), ("1f1b", "zb_h1"), ("ahead",), (2,), 60.0, 500, 3)


def problem() -> Problem:
    one = small.problem(22, ranks=4, num_tables=5, scope=SCOPE)
    nodes = tuple(dataclasses.replace(group, memory=1e9, price=2.0) for group in one.topology.nodes)
    return dataclasses.replace(one, topology=dataclasses.replace(one.topology, nodes=nodes))


@pytest.fixture(scope="module")
def report() -> dict:
    one = problem()
    found = facts(one, search(one, progress=lambda line: None))
    found["sensitivity"] = what_if(one, found)
    found["measured"] = [{"name": "step ms", "predicted": 2.0, "measured": 1.6}]
    return found


def test_terminal_report_fits_and_says_the_main_things(report: dict) -> None:
    for verbose in (False, True):
        text = render(report, verbose)
        assert max(map(len, text.split("\n"))) <= WIDTH
        for word in ("rows/s", "fwd comp", "imbalance", "bound by", "hidden", "runners-up", "one more node", "+25.0%"):
            assert word in text, word


def test_numbers_add_up(report: dict) -> None:
    assert report["rows_per_second"] == pytest.approx(report["global_batch"] / report["step_ms"] * 1e3)
    assert sum(report["bounds"]["parts"].values()) == pytest.approx(report["step_ms"], rel=1e-6)
    for one in report["exchange_ms"].values():
        assert one["hidden"] + one["exposed"] == pytest.approx(one["total"])
    for one in report["ranks"]:
        assert sum(one["memory_parts"].values()) == pytest.approx(one["memory"])
    hours = 1e9 / report["rows_per_second"] / 3600
    assert report["price_per_billion_rows"] == pytest.approx(4 * 2.0 * hours)
    assert all(one["why"] for one in report["search"]["runners"])


class Balanced(HTMLParser):
    """Every element that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        """An SVG element without content."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_whole_and_needs_no_network(report: dict) -> None:
    one = problem()
    text = page(report, search(one, progress=lambda line: None).best)
    parser = Balanced()
    parser.feed(text)
    assert not parser.open
    assert not re.findall(r"""(?:src|href)=["'](?!data:)|url\(|@import|<script""", text)
    for word in (
        "What bounds the step",
        "<svg",
        "Tables",
        "t_0",
        "Runners-up",
        "Predicted and measured",
        "16-bit rows",
    ):
        assert word in text, word


def test_text_from_outside_is_escaped(report: dict) -> None:
    nasty = {**report, "choice": "<b>&", "topology": {**report["topology"], "name": "<script>x"}}
    assert "<script" not in page(nasty, None) and "&lt;b&gt;&amp;" in page(nasty, None)


def tight(memory: float, sharding: tuple[str, ...]) -> Problem:
    one = problem()
    group = dataclasses.replace(one.topology.nodes[0], memory=memory)
    spec = dataclasses.replace(one.tables[2].spec, num_rows=2_000_000)
    tables = (*one.tables[:2], dataclasses.replace(one.tables[2], spec=spec), *one.tables[3:])
    rules = {table.spec.name: Allowed(sharding) for table in tables}
    top = dataclasses.replace(one.topology, nodes=(group,))
    return dataclasses.replace(one, topology=top, tables=tables, allowed=rules, table_optimizer="adagrad")


def test_misfit_names_table_bytes_and_changes_that_fit() -> None:
    """128 MB of one table on ranks of 40 MB: whole it fits nowhere, cut by rows it needs one more node."""
    one = tight(40e6, ("table_wise",))
    found = search(one, progress=lambda line: None)
    text = explain_misfit(one, found)
    assert not found.fits
    assert f"lacks {found.best.assignment.shortfall:,.0f} bytes" in text.replace("\n   ", " ")
    assert "t_2: 2,000,000 x 8" in text
    assert max(map(len, text.split("\n"))) <= WIDTH
    assert "other sharding types than those allowed" in text
    cap = int(re.search(r"no table above ([\d,]+) rows", text)[1].replace(",", ""))
    specs = [dataclasses.replace(t.spec, num_rows=min(t.spec.num_rows, cap)) for t in one.tables]
    smaller = tuple(dataclasses.replace(t, spec=spec) for t, spec in zip(one.tables, specs, strict=True))
    assert search(dataclasses.replace(one, tables=smaller), progress=lambda line: None).fits


def test_the_number_of_nodes_is_the_smallest() -> None:
    one = tight(12e6, ("table_wise", "row_wise"))
    text = explain_misfit(one, search(one, progress=lambda line: None))
    nodes = int(re.search(r"(\d+) more node", text)[1])
    fits = [search(more_nodes(one, count), progress=lambda line: None).fits for count in (nodes - 1, nodes) if count]
    assert fits[-1] and not any(fits[:-1])
    assert "optimizer/table=rowwise_adagrad" not in text or nodes


def test_optimizer_state_counts_towards_fitting() -> None:
    """Weights alone fit, weights with state do not: a planner that forgets the state calls this feasible."""
    one = tight(34e6, ("row_wise",))
    assert not search(one, progress=lambda line: None).fits
    assert search(dataclasses.replace(one, table_optimizer="sgd"), progress=lambda line: None).fits


def test_a_plan_holds_its_report(report: dict) -> None:
    one = problem()
    plan = to_plan(one, search(one, progress=lambda line: None).best, report)
    assert plan.to_json()["predicted"]["step_ms"] == report["step_ms"]
