"""Predicted scaling from 128 to 1,536 ranks, on paper: python -m tools.scaling_study [--out docs/scaling.svg]

Two towers over MLPerf's tables, H100 nodes of eight (conf/topology/h100_1x8.yaml), the same rows a rank at every size. Prints
the table of docs/scaling.md and draws its figure.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from xml.sax.saxutils import escape

import torch
from omegaconf import OmegaConf

from recpipe.embedding.layout import SHARDING_TYPES
from recpipe.model import build_model
from recpipe.model.config import DcnV2Config, ModelConfig, WukongConfig
from recpipe.planner.problem import Problem, Scope
from recpipe.planner.search import search
from recpipe.planner.statistics import stated_demands
from recpipe.planner.table_costs import Allowed
from recpipe.planner.topology import Topology, TopologySettings, to_topology
from recpipe.planner.tower import Tower, count_tower
from recpipe.specs import Feature, Schema

CONF = Path(__file__).resolve().parent.parent / "conf"
RANKS = (128, 256, 512, 1024, 1536)
ROWS = 512
SHARDED = tuple(kind for kind in SHARDING_TYPES if kind != "replicated")


@dataclass(frozen=True)
class Way:
    """One way to run a step.

    Args:
        name: for table and figure.
        exchange: what tables may use.
        scope: what else may be chosen.
    """

    name: str
    exchange: tuple[str, ...]
    scope: Scope


WAYS = (
    Way("pooled, no overlap", ("pooled",), Scope((1,), (1,), ("1f1b",), ("step",))),
    Way("sparse dist (ids ahead)", ("pooled",), Scope((1,), (1,), ("1f1b",), ("route",))),
    Way("rows ahead of time only", ("window",), Scope((1,), (1,), ("1f1b",), ("ahead",))),
    Way("window overlap only", ("window",), Scope((1,), (1, 2, 4, 8), ("1f1b",), ("step",))),
    Way("everything", ("window", "pooled"), Scope((), (1, 2, 4, 8), ("1f1b", "zb_h1", "zbv"), ("ahead", "step"))),
)
TOWERS: tuple[tuple[str, ModelConfig], ...] = (
    (
        "MLPerf DLRM-DCNv2",
        DcnV2Config(
            embedding_dim=128,
            dense_arch_layer_sizes=[512, 256, 128],
            over_arch_layer_sizes=[1024, 1024, 512, 256, 1],
            structure="stacked",
            dcn_low_rank_dim=512,
        ),
    ),
    (
        "deep tower (Wukong, 8 layers)",
        WukongConfig(
            embedding_dim=128,
            dense_arch_layer_sizes=[512, 256, 128],
            num_layers=8,
            num_fm_vectors=32,
            num_linear_vectors=32,
            fm_rank=24,
            fm_arch_layer_sizes=[2048, 2048],
            over_arch_layer_sizes=[512, 1],
        ),
    ),
)


def topology(ranks: int) -> Topology:
    """So many H100, eight a node."""
    settings = OmegaConf.merge(
        OmegaConf.structured(TopologySettings), OmegaConf.load(CONF / "topology" / "h100_1x8.yaml")
    )
    node = to_topology(OmegaConf.to_object(settings))
    return replace(node, name=f"{ranks} H100", nodes=(replace(node.nodes[0], count=ranks // 8),))


def problem(cfg: ModelConfig, tower: Tower, ranks: int, way: Way, skew: float) -> Problem:
    """MLPerf's tables under one way to run a step."""
    load = OmegaConf.load(CONF / "workload" / "mlperf.yaml")
    rows, means = list(load.num_embeddings_per_feature), [float(n) for n in load.multi_hot_sizes]
    schema = Schema(
        load.num_dense, tuple(Feature(f"cat_{i}", n, m) for i, (n, m) in enumerate(zip(rows, means, strict=True)))
    )
    specs = build_model(cfg, schema, device="meta").tables
    tables = stated_demands(specs, means, [skew] * len(specs), load.by_frequency)
    sharding = SHARDED if way.exchange == ("pooled",) else SHARDING_TYPES
    rules = {spec.name: Allowed(sharding, way.exchange) for spec in specs}
    scope = replace(way.scope, seconds=20.0, effort=600)
    return Problem(topology(ranks), tables, tower, ROWS * ranks, "adagrad", "adagrad", allowed=rules, scope=scope)


def tower_of(cfg: ModelConfig) -> Tower:
    """Counted costs of a tower over MLPerf's columns."""
    schema = Schema(13, tuple(Feature(f"cat_{i}", 1000) for i in range(26)))
    return count_tower(build_model(cfg, schema, device="meta"))


def study(skew: float) -> dict[str, dict[str, list[tuple[float, str]]]]:
    """Tower -> way -> (millions of rows a second, plan) at each number of ranks."""
    found: dict[str, dict[str, list[tuple[float, str]]]] = {}
    for title, cfg in TOWERS:
        tower = tower_of(cfg)
        flops = sum(block.flops() for block in tower.blocks)
        weights = sum(block.parameters for block in tower.blocks)
        print(
            f"\n{title}: {flops / 1e6:.0f} MFLOP a row forward and backward, {weights / 1e6:.1f}M weights", flush=True
        )
        print("| way | " + " | ".join(f"{ranks:,}" for ranks in RANKS) + " | of linear | plan at the last |")
        print("|---|" + "---|" * (len(RANKS) + 2), flush=True)
        for way in WAYS:
            points = []
            for ranks in RANKS:
                best = search(problem(cfg, tower, ranks, way, skew), progress=lambda line: None).best
                points.append((ROWS * ranks / best.step / 1e3, best.choice.label))
            found.setdefault(title, {})[way.name] = points
            linear = points[-1][0] / points[0][0] * RANKS[0] / RANKS[-1]
            rates = " | ".join(f"{rate:.1f}" for rate, _ in points)
            print(f"| {way.name} | {rates} | {linear:.0%} | {points[-1][1]} |", flush=True)
    return found


COLORS = ("#8a8f99", "#3b78c4", "#e0913a", "#7a5cc0", "#2f9e77")
WIDTH, HEIGHT, LEFT, TOP, GAP = 400, 300, 60, 46, 70


def figure(found: dict[str, dict[str, list[tuple[float, str]]]]) -> str:
    """Two panels: millions of rows a second over ranks."""
    body = [panel(title, ways, LEFT + number * (WIDTH + GAP)) for number, (title, ways) in enumerate(found.items())]
    width, height = LEFT + len(found) * (WIDTH + GAP), TOP + HEIGHT + 90
    legend = "".join(
        f'<rect x="{LEFT + 165 * k}" y="{height - 28}" width="12" height="12" fill="{COLORS[k]}"/>'
        f'<text x="{LEFT + 165 * k + 17}" y="{height - 18}" font-size="12">{escape(way.name)}</text>'
        for k, way in enumerate(WAYS)
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">'
    return head + '<rect width="100%" height="100%" fill="white"/>' + "".join(body) + legend + "</svg>\n"


def panel(title: str, ways: dict[str, list[tuple[float, str]]], left: float) -> str:
    """One tower."""
    top = max(rate for points in ways.values() for rate, _ in points) * 1.05

    def at(ranks: float, rate: float) -> tuple[float, float]:
        return left + WIDTH * ranks / RANKS[-1], TOP + HEIGHT * (1 - rate / top)

    parts = [
        f'<text x="{left}" y="{TOP - 18}" font-size="14" font-weight="bold">{escape(title)}, million rows/s</text>'
    ]
    for k in range(6):
        x, y = at(0, top * k / 5)
        parts.append(f'<line x1="{x}" y1="{y:.1f}" x2="{x + WIDTH}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 6}" y="{y + 4:.1f}" font-size="11" text-anchor="end">{top * k / 5:.0f}</text>')
    for ranks in RANKS:
        x, y = at(ranks, 0)
        parts.append(f'<text x="{x:.1f}" y="{y + 16:.1f}" font-size="11" text-anchor="middle">{ranks}</text>')
    parts.append(
        f'<text x="{left + WIDTH / 2}" y="{TOP + HEIGHT + 34}" font-size="11" text-anchor="middle">ranks</text>'
    )
    for color, points in zip(COLORS, ways.values(), strict=True):
        line = [at(ranks, rate) for ranks, (rate, _) in zip(RANKS, points, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in line]
    return "".join(parts)


def main() -> None:
    """Prints the tables; draws the figure where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", help="the figure, an SVG file")
    parser.add_argument("--skew", type=float, default=1.05, help="exponent of the id frequencies")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = study(options.skew)
    if options.out:
        Path(options.out).write_text(figure(found))
        print(f"\nwrote {options.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
