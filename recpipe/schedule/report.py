"""A simulation in words and tables, for a terminal."""

from __future__ import annotations

from recpipe.schedule.auto import Candidate
from recpipe.schedule.check import Proof
from recpipe.schedule.families import FAMILIES
from recpipe.schedule.ir import COMPUTE_OPS, Program
from recpipe.schedule.metrics import Metrics

MAX_ORDER = 600
"""Compute actions printed; above that the order is only in ``program.txt``."""


def compute_order(program: Program) -> str:
    """F, B, I and W of every rank in issue order."""
    rows = [[action for action in order if action.op in COMPUTE_OPS] for order in program.orders]
    total = sum(map(len, rows))
    if total > MAX_ORDER:
        return f"order: {total} compute actions on {len(rows)} ranks, in program.txt"
    return "\n".join(f"rank {rank}: {' '.join(map(str, row))}" for rank, row in enumerate(rows))


def summary(program: Program, proof: Proof, metrics: Metrics, unit: str) -> str:
    """Makespan, exactness, one row a rank, links and exchanges."""
    exact = "exact" if proof.exact else f"weights up to {proof.weight_lag}, tables up to {proof.table_lag} steps old"
    lines = [
        f"{program.name}: {metrics.makespan:g} {unit} for {program.steps} step(s), bubble {metrics.bubble_ratio:.1%}, "
        f"{exact}, {metrics.weight_copies} weight copies a lane, {program.num_ranks} ranks, {program.num_actions} actions",
        "",
        _columns(["rank", "busy", "bubble, window", "bubble, flush", "peak activations"]),
    ]
    for rank, one in enumerate(metrics.ranks):
        lines.append(_columns([str(rank), *(f"{x:g}" for x in (one.busy, one.window, one.flush, one.peak_activations))]))
    lines += _links(metrics) + _exchange(metrics, unit)
    if program.name in FAMILIES and FAMILIES[program.name].executed:
        lines.append(f"\nin a run {FAMILIES[program.name].executed}")
    if program.lanes > 1:
        lines.append(f"\n{program.lanes} identical lanes; lane 0 shown, collectives span all")
    return "\n".join(lines)


def _links(metrics: Metrics) -> list[str]:
    lines = ["", _columns(["link", "bytes"])] if metrics.bytes_per_link else []
    lines += [_columns([link, f"{size:g}"]) for link, size in metrics.bytes_per_link.items()]
    return lines + [_columns([op, f"{size:g}"]) for op, size in metrics.collective_bytes.items()]


def _exchange(metrics: Metrics, unit: str) -> list[str]:
    moving = {op: one for op, one in metrics.exchange.items() if one.total > 0}
    if not moving:
        return []
    lines = ["", _columns([f"exchange ({unit})", "total", "hidden", "exposed"])]
    return lines + [
        _columns([op, *(f"{x:g}" for x in (one.total, one.hidden, one.exposed))]) for op, one in moving.items()
    ]


def _columns(cells: list[str]) -> str:
    return "".join(cell.ljust(18) for cell in cells).rstrip()


_ROW = "{:<16}{:>12}{:>10}{:>14}{:>14}{:>8}  {}"


def row_header(unit: str) -> str:
    """Head of a comparison of schedules."""
    return _ROW.format("schedule", f"time ({unit})", "bubble", "worst window", "peak", "copies", "")


def row(name: str, program: Program | None, metrics: Metrics | None, note: str) -> str:
    """One line of a comparison; without a program, the reason."""
    if program is None or metrics is None:
        return _ROW.format(name, "-", "-", "-", "-", "-", note)
    window = max(rank.window for rank in metrics.ranks)
    peak = max(rank.peak_activations for rank in metrics.ranks)
    chosen = program.name if program.name != name else note
    time, bubble = f"{metrics.makespan:g}", f"{metrics.bubble_ratio:.1%}"
    return _ROW.format(name, time, bubble, f"{window:g}", f"{peak:g}", metrics.weight_copies, chosen)


def candidates_table(candidates: list[Candidate], unit: str) -> str:
    """What `auto` looked at, fastest first."""
    lines = [f"{'candidate':<44}{f'time ({unit})':>12}{'peak':>8}"]
    for one in candidates:
        time = f"{one.makespan:g}" if not one.note else "-"
        lines.append(f"{one.label:<44}{time:>12}{one.peak_activations:>8g}  {one.note}".rstrip())
    return "\n".join(lines)
