"""The report for a terminal: at most 100 columns, with the lines that engineers know from a sharding planner."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from recpipe.planner.report.cells import change_cells, measured_cells

WIDTH = 100
_MANY = 16


def render(facts: dict[str, Any], verbose: bool = False) -> str:
    """The whole report.

    Args:
        facts: of `recpipe.planner.report.facts`.
        verbose: every rank, table and runner-up instead of the telling ones.
    """
    parts = [head(facts), ranks_table(facts, verbose), tables_table(facts, verbose), stages_table(facts)]
    parts += [bounds(facts), runners(facts, verbose), sensitivity(facts), measured(facts), torchrec(facts)]
    return "\n\n".join(part for part in parts if part)


def head(facts: dict[str, Any]) -> str:
    """The decision in a few lines."""
    top, search = facts["topology"], facts.get("search")
    price = facts["price_per_billion_rows"]
    lines = [
        f"plan for {top['name']}: {top['ranks']:,} ranks on {top['nodes']:,} node(s), "
        f"{'measured' if top['measured'] else 'from stated numbers'}",
        f"  {facts['choice']}",
        f"  step {ms(facts['step_ms'])}, {facts['rows_per_second']:,.0f} rows/s, efficiency {facts['efficiency']:.0%}"
        + (f", {price:,.2f} a billion rows" if price else ""),
        f"  batch_size {facts['batch_size']:,} a replica, global batch {facts['global_batch']:,}",
    ]
    if search:
        proof = (
            "no plan in this scope is faster" if search["proven"] else f"at most {search['gap']:.1%} above their bound"
        )
        late = ", ended by the time box" if search["timed_out"] else ""
        lines.append(
            f"  {search['looked']} designs considered, {search['rated']} simulated in {search['seconds']:.1f} s{late}; {proof}"
        )
    return "\n".join(lines)


def ms(value: float) -> str:
    """Milliseconds, four figures."""
    return f"{value:.4g} ms"


def ranks_table(facts: dict[str, Any], verbose: bool) -> str:
    """Memory and phases of each rank."""
    ranks = facts["ranks"]
    shown = ranks if verbose or len(ranks) <= _MANY else telling_ranks(facts)
    header = (
        "rank",
        "memory GB",
        "%",
        "fwd comp",
        "fwd comm",
        "bwd comp",
        "bwd comm",
        "prefetch",
        "in MB",
        "out MB",
        "shards",
    )
    rows = [
        (
            str(one["rank"]),
            f"{one['memory'] / 1e9:.3g}",
            f"{one['memory_share']:.0%}",
            *(
                f"{one[key]:.3g}"
                for key in (
                    "forward_compute_ms",
                    "forward_comms_ms",
                    "backward_compute_ms",
                    "backward_comms_ms",
                    "prefetch_ms",
                )
            ),
            f"{one['input_mb']:.3g}",
            f"{one['output_mb']:.3g}",
            " ".join(f"{code}:{count}" for code, count in one["shards"].items()) or "-",
        )
        for one in shown
    ]
    left = len(ranks) - len(shown)
    note = f"\n({left:,} ranks between these; -v shows all)" if left else ""
    uneven = facts["imbalance"]
    lines = [
        f"imbalance of {name}: largest over mean {one['max_over_mean']:.2f}, total variation {one['total_variation']:.3f}, "
        f"chi {one['chi']:.3f}, KL {one['kl']:.3f}"
        for name, one in uneven.items()
    ]
    return "ranks (phases in ms)\n" + table(header, rows) + note + "\n" + "\n".join(lines)


def telling_ranks(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """The first ranks, the busiest and the fullest ones."""
    ranks = facts["ranks"]
    by_time = sorted(ranks, key=lambda one: -one["table_ms"])[:3]
    by_memory = sorted(ranks, key=lambda one: -one["memory_share"])[:3]
    picked = {one["rank"]: one for one in (*ranks[:3], *by_time, *by_memory, ranks[-1])}
    return [picked[rank] for rank in sorted(picked)]


def tables_table(facts: dict[str, Any], verbose: bool) -> str:
    """How each table is kept."""
    tables = facts["tables"]
    most = 40
    shown = tables if verbose or len(tables) <= most else sorted(tables, key=lambda one: -one["storage"])[:20]
    header = ("table", "type", "exchange", "kernel", "ms", "GB", "pool", "uniq", "out MB", "dim", "rows", "ranks")
    rows = [
        (
            short(one["table"], 16),
            one["code"],
            one["exchange"],
            one["kernel"],
            f"{one['lookup_ms'] + one['update_ms']:.2g}",
            f"{one['storage'] / 1e9:.2g}",
            f"{one['mean_ids']:.3g}",
            f"{one['unique_share']:.0%}",
            f"{one['output_mb']:.2g}",
            str(one["dim"]),
            count(one["num_rows"]),
            rank_list(one["ranks"]),
        )
        for one in shown
    ]
    kinds: dict[str, int] = {}
    for one in tables:
        key = one["code"] if one["exchange"] == "-" else f"{one['code']} {one['exchange']}"
        kinds[key] = kinds.get(key, 0) + 1
    left = len(tables) - len(shown)
    note = f"\n({left:,} smaller tables; -v shows all)" if left else ""
    summary = ", ".join(f"{number} {name}" for name, number in sorted(kinds.items(), key=lambda item: -item[1]))
    return "tables\n" + table(header, rows) + note + f"\n{len(tables)} tables: {summary}"


def stages_table(facts: dict[str, Any]) -> str:
    """What each stage holds."""
    if len(facts["stages"]) < 2:
        return ""
    rows = [
        (
            str(one["stage"]),
            f"{one['share']:.1%}",
            count(one["parameters"]),
            rank_list(one["ranks"]),
            short(", ".join(one["blocks"]), 60),
        )
        for one in facts["stages"]
    ]
    return f"stages (bubble {facts['bubble']:.1%})\n" + table(("stage", "cost", "weights", "ranks", "blocks"), rows)


def bounds(facts: dict[str, Any]) -> str:
    """What the step consists of, and what is exposed."""
    chain, busiest = facts["bounds"], facts["busiest"]
    step = facts["step_ms"]
    parts = ", ".join(f"{name} {ms_} ({ms_ / step:.0%})" for name, ms_ in _rounded(chain["parts"]).items())
    lines = [
        f"the step is bound by {chain['by']}; its longest chain: {parts}",
        f"busiest rank {busiest['rank']}, most of it table {busiest['table']}; fullest rank {busiest['fullest']}",
    ]
    rows = [
        (name, *(f"{one[key]:.3g}" for key in ("total", "hidden", "exposed")))
        for name, one in facts["exchange_ms"].items()
    ]
    text = wrapped("\n".join(lines))
    return text + ("\n" + table(("ms a rank and step", "on its way", "hidden", "exposed"), rows) if rows else "")


def _rounded(parts: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.3g}") for name, value in parts.items()}


def runners(facts: dict[str, Any], verbose: bool) -> str:
    """What else was rated, and why it lost."""
    search = facts.get("search")
    if not search or not search["runners"]:
        return ""
    found = search["runners"] if verbose else search["runners"][:5]
    rows = [
        (short(one["plan"], 46), "-" if one["step_ms"] is None else f"{one['step_ms']:.4g}", short(one["why"], 42))
        for one in found
    ]
    text = "runners-up\n" + table(("plan", "ms", "why it lost"), rows)
    dropped = "; ".join(f"{note} ({number})" for note, number in search["dropped"].items())
    return text + (wrapped(f"\nnot simulated: {dropped}") if dropped else "")


def sensitivity(facts: dict[str, Any]) -> str:
    """What a change of the problem would do."""
    found = facts.get("sensitivity")
    if not found:
        return ""
    rows = change_cells(found, lambda text: short(text, 44))
    return "what would change it\n" + table(("change", "ms", "rows/s", "rows/s", "plan"), rows)


def measured(facts: dict[str, Any]) -> str:
    """Measured figures of a run beside the predicted ones."""
    found = facts.get("measured")
    if not found:
        return ""
    rows = measured_cells(found)
    return "predicted and measured\n" + table(("figure", "predicted", "measured", "difference"), rows)


def torchrec(facts: dict[str, Any]) -> str:
    """The plan of TorchRec's own planner, in the same simulator."""
    search = facts.get("search") or {}
    step = search.get("named", {}).get("torchrec")
    if step is None:
        return ""
    return f"TorchRec's own plan, by the same model and with its best schedule: {ms(step)} ({step / facts['step_ms'] - 1:+.1%})"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns: the first to the left, numbers to the right, the last as it is."""
    widths = [max(len(row[k]) for row in (header, *rows)) for k in range(len(header))]
    lines = []
    for row in (header, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [
            row[k].ljust(widths[k]) if _is_text(rows, k) else row[k].rjust(widths[k]) for k in range(1, len(header))
        ]
        lines.append("  ".join(cells).rstrip()[:WIDTH])
    return "\n".join(lines)


def _is_text(rows: Sequence[Sequence[str]], column: int) -> bool:
    return any(row[column][:1].isalpha() for row in rows) or bool(rows and column == len(rows[0]) - 1)


def count(number: float) -> str:
    """A count in thousands, millions or billions."""
    for size, mark in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{mark}"
    return f"{number:g}"


def rank_list(ranks: Sequence[int]) -> str:
    """Ranks, runs written as 0-7."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return short(text, 18)


def short(text: str, width: int) -> str:
    """At most `width` characters."""
    return text if len(text) <= width else text[: width - 2] + ".."


def wrapped(text: str) -> str:
    """Lines of at most `WIDTH` columns; what is left of a line is indented further."""
    lines: list[str] = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + 3)
        lines += textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False) or [""]
    return "\n".join(lines)
