"""The report as one page: text, tables and pictures in one file that needs no network, no script and no font."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from recpipe.planner.found import Rated
from recpipe.planner.report.cells import change_cells, measured_cells
from recpipe.planner.report.style import STYLE
from recpipe.planner.report.terminal import count, rank_list, telling_ranks
from recpipe.schedule.draw.svg import svg

_MANY_RANKS, _MANY_TABLES, _MANY_EVENTS = 64, 200, 6000
_PHASES = (
    ("forward_compute_ms", "fwd compute"),
    ("forward_comms_ms", "fwd comms"),
    ("backward_compute_ms", "bwd compute"),
    ("backward_comms_ms", "bwd comms"),
    ("prefetch_ms", "prefetch"),
)
_MEMORY = (
    ("tables", "tables"),
    ("table_state", "table state"),
    ("weights", "weights"),
    ("weight_state", "dense state"),
    ("weight_gradients", "dense gradients"),
    ("activations", "activations"),
    ("rows", "rows"),
    ("buffers", "buffers"),
    ("input", "input"),
)


def page(facts: dict[str, Any], rated: Rated | None) -> str:
    """The whole page.

    Args:
        facts: of `recpipe.planner.report.facts`.
        rated: for the chart of the step; None leaves it out.
    """
    sections = [
        _decision(facts),
        _measured(facts),
        _bound(facts),
        _gantt(rated) if rated else "",
        _ranks(facts),
        _tables(facts),
        _stages(facts),
        _runners(facts),
        _sensitivity(facts),
    ]
    title = f"recpipe plan: {facts['topology']['name']}"
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{STYLE}</style></head><body><main>'
    )
    return head + f"<h1>{escape(title)}</h1>" + "\n".join(one for one in sections if one) + "</main></body></html>\n"


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def _table(header: Sequence[str], rows: Iterable[Sequence[object]], text: Sequence[int] = (0,)) -> str:
    """A table that scrolls inside its own box; columns in `text` are to the left."""

    def cells(row: Sequence[object], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=t' if k in text else ''}>{escape(str(cell))}</{tag}>" for k, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<div class=wide><table><thead><tr>{cells(header, 'th')}</tr></thead><tbody>{body}</tbody></table></div>"


def _decision(facts: dict[str, Any]) -> str:
    price = facts["price_per_billion_rows"]
    top, search = facts["topology"], facts.get("search")
    numbers = [
        ("step", f"{facts['step_ms']:.4g} ms"),
        ("rows/s", f"{facts['rows_per_second']:,.0f}"),
        ("efficiency", f"{facts['efficiency']:.0%}"),
        ("ranks", f"{top['ranks']:,} on {top['nodes']:,} nodes"),
        ("global batch", f"{facts['global_batch']:,}"),
        ("batch_size", f"{facts['batch_size']:,} a replica"),
    ]
    if price:
        numbers.append(("a billion rows", f"{price:,.2f}"))
    tiles = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in numbers)
    notes = [facts["choice"], "machine measured" if top["measured"] else "machine from stated numbers"]
    if search:
        proof = (
            "no plan in its scope is faster" if search["proven"] else f"at most {search['gap']:.1%} above their bound"
        )
        notes.append(
            f"{search['looked']} designs considered, {search['rated']} simulated in {search['seconds']:.1f} s; {proof}"
        )
        if "torchrec" in search["named"]:
            step = search["named"]["torchrec"]
            notes.append(f"TorchRec's own plan, by the same model: {step:.4g} ms ({step / facts['step_ms'] - 1:+.1%})")
    return f"<section><div class=tiles>{tiles}</div><p>{'<br>'.join(map(escape, notes))}</p></section>"


def _measured(facts: dict[str, Any]) -> str:
    found = facts.get("measured")
    if not found:
        return ""
    rows = measured_cells(found)
    return _section("Predicted and measured", _table(("figure", "predicted", "measured", "difference"), rows))


def _bound(facts: dict[str, Any]) -> str:
    chain, busiest, step = facts["bounds"], facts["busiest"], facts["step_ms"]
    bar = _bar([(name, ms / step) for name, ms in chain["parts"].items()], 1.0)
    rows = [(name, f"{ms:.3g}", f"{ms / step:.0%}") for name, ms in chain["parts"].items()]
    exchange = [
        (name, f"{one['total']:.3g}", f"{one['hidden']:.3g}", f"{one['exposed']:.3g}")
        for name, one in facts["exchange_ms"].items()
    ]
    text = (
        f"<p>The step is bound by <b>{escape(chain['by'])}</b>. Busiest rank {busiest['rank']}, most of it table "
        f"{escape(busiest['table'])}; fullest rank {busiest['fullest']}.</p>"
    )
    parts = [text, bar, _table(("on the longest chain", "ms", "of the step"), rows)]
    if exchange:
        parts.append(_table(("ms a rank and step", "on its way", "hidden", "exposed"), exchange))
    return _section("What bounds the step", *parts)


def _gantt(rated: Rated) -> str:
    assert rated.design is not None and rated.assignment is not None
    timeline = rated.design.model().timeline(rated.assignment.times)
    if len(timeline.events) > _MANY_EVENTS:
        return ""
    steps = rated.design.program.steps
    drawn = svg(timeline, f"{rated.choice.schedule}, {steps} steps, {timeline.makespan:.4g} ms")
    lanes = rated.design.lanes
    note = f"<p>One of {lanes:,} identical replicas.</p>" if lanes > 1 else ""
    return _section("The predicted steps", note, f"<div class=wide>{drawn}</div>")


def _ranks(facts: dict[str, Any]) -> str:
    ranks = facts["ranks"]
    shown = ranks if len(ranks) <= _MANY_RANKS else telling_ranks(facts)
    header = ("rank", "node", "memory GB", "%", *(name for _, name in _PHASES), "in MB", "out MB", "shards")
    rows = [
        (
            one["rank"],
            one["node"],
            f"{one['memory'] / 1e9:.3g}",
            f"{one['memory_share']:.0%}",
            *(f"{one[key]:.3g}" for key, _ in _PHASES),
            f"{one['input_mb']:.3g}",
            f"{one['output_mb']:.3g}",
            " ".join(f"{code}:{number}" for code, number in one["shards"].items()) or "-",
        )
        for one in shown
    ]
    left = len(ranks) - len(shown)
    note = f"<p>{left:,} ranks between these are in plan.json.</p>" if left else ""
    uneven = [
        (name, *(f"{one[key]:.3f}" for key in ("max_over_mean", "total_variation", "chi", "kl")))
        for name, one in facts["imbalance"].items()
    ]
    return _section(
        "Ranks",
        "<p>Milliseconds of each phase.</p>",
        _table(header, rows, (11,)),
        note,
        _table(("imbalance of", "largest over mean", "total variation", "chi", "KL"), uneven),
        "<h3>Time</h3>",
        _rank_bars(shown, [(key, name) for key, name in _PHASES], None),
        "<h3>Memory</h3>",
        _rank_bars(shown, list(_MEMORY), "memory_parts"),
    )


def _rank_bars(ranks: Sequence[dict[str, Any]], parts: Sequence[tuple[str, str]], inside: str | None) -> str:
    """A stacked bar a rank, all to one scale."""
    values = [one[inside] if inside else one for one in ranks]
    most = max(sum(one[key] for key, _ in parts) for one in values) or 1.0
    bars = "".join(
        f"<div class=row><span>{rank['rank']}</span>{_bar([(name, one[key]) for key, name in parts], most, False)}</div>"
        for rank, one in zip(ranks, values, strict=True)
    )
    return f"<div class=bars>{bars}</div>" + _legend([name for _, name in parts])


def _bar(parts: Sequence[tuple[str, float]], whole: float, legend: bool = True) -> str:
    pieces = "".join(
        f'<i class=c{number % 10} style="width:{100 * value / whole:.3f}%" title="{escape(name)} {value:.3g}"></i>'
        for number, (name, value) in enumerate(parts)
        if value > 0
    )
    return f"<div class=bar>{pieces}</div>" + (_legend([name for name, _ in parts]) if legend else "")


def _legend(names: Sequence[str]) -> str:
    return (
        "<p class=legend>"
        + "".join(f"<span><i class=c{number % 10}></i>{escape(name)}</span>" for number, name in enumerate(names))
        + "</p>"
    )


def _tables(facts: dict[str, Any]) -> str:
    tables = sorted(facts["tables"], key=lambda one: -one["storage"])[:_MANY_TABLES]
    header = (
        "table",
        "sharding",
        "exchange",
        "kernel",
        "lookup ms",
        "update ms",
        "storage GB",
        "pooling",
        "unique",
        "out MB",
        "features",
        "dim",
        "rows",
        "ranks",
    )
    rows = [
        (
            one["table"],
            f"{one['code']} {one['sharding']}",
            one["exchange"],
            one["kernel"],
            f"{one['lookup_ms']:.2g}",
            f"{one['update_ms']:.2g}",
            f"{one['storage'] / 1e9:.3g}",
            f"{one['mean_ids']:.3g}",
            f"{one['unique_share']:.0%}",
            f"{one['output_mb']:.3g}",
            1,
            one["dim"],
            count(one["num_rows"]),
            rank_list(one["ranks"]),
        )
        for one in tables
    ]
    left = len(facts["tables"]) - len(tables)
    note = f"<p>The largest {len(tables)} of {len(facts['tables']):,} tables; plan.json has all.</p>" if left else ""
    return _section("Tables", note, _table(header, rows, (0, 1, 2, 3, 13)))


def _stages(facts: dict[str, Any]) -> str:
    if len(facts["stages"]) < 2:
        return ""
    rows = [
        (
            one["stage"],
            rank_list(one["ranks"]),
            f"{one['share']:.1%}",
            count(one["parameters"]),
            ", ".join(one["blocks"]),
        )
        for one in facts["stages"]
    ]
    return _section(
        "Stages",
        f"<p>Bubble {facts['bubble']:.1%}.</p>",
        _table(("stage", "ranks", "cost", "weights", "blocks"), rows, (4,)),
    )


def _runners(facts: dict[str, Any]) -> str:
    search = facts.get("search")
    if not search or not search["runners"]:
        return ""
    rows = [
        (one["plan"], "-" if one["step_ms"] is None else f"{one['step_ms']:.4g}", one["tables"], one["why"])
        for one in search["runners"][:20]
    ]
    dropped = "".join(f"<li>{escape(note)} ({number})</li>" for note, number in search["dropped"].items())
    rest = f"<details><summary>Not simulated</summary><ul>{dropped}</ul></details>" if dropped else ""
    return _section("Runners-up", _table(("plan", "ms", "tables from", "why it lost"), rows, (0, 2, 3)), rest)


def _sensitivity(facts: dict[str, Any]) -> str:
    found = facts.get("sensitivity")
    if not found:
        return ""
    rows = change_cells(found)
    return _section("What would change it", _table(("change", "ms", "rows/s", "gain", "plan"), rows, (0, 4)))
