"""What a benchmark runs: the settings of ``recpipe bench`` and the names of contestants. No torch here."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from recpipe.errors import ConfigError, nearest

SYNCHRONOUS = ("TrainPipelineBase", "TrainPipelineSparseDist")
STALE = ("TrainPipelineSemiSync",)
TORCHREC = (*SYNCHRONOUS, *STALE)
EXCHANGES = ("window", "pooled")
MODELS = ("dlrm", "dcn_v2")
IDS = ("real", "skewed", "uniform")
DEPTHS = ("step", "route", "ahead", "spread")
COMPUTE_16 = "compute_dtype=bfloat16"
BF16 = (COMPUTE_16, "exchange.wire_dtype=bfloat16", "exchange.dense_wire_dtype=bfloat16")
_MESH = re.compile(r"(\d+)x(\d+)")
_MICROBATCHES = re.compile(r"m(\d+)")


@dataclass
class BenchConfig:
    """Root of ``conf/bench.yaml``.

    Args:
        action: compare, overlap, profile, predict or plan.
        links: ``none`` (loopback) or rates as ``tc`` writes them, for instance ``1gbit``; rates need root.
        models: dlrm, dcn_v2 (three cross layers of rank 512).
        ids: real (rows of `criteo`, hashed), skewed (drawn, as skewed as those), uniform. Empty: the first that there is
            data for, and uniform.
        criteo: Criteo text file of the real rows.
        contestants: of compare and profile: TorchRec's pipelines by name, and ``EXCHANGE:REPLICASxSTAGES:mMICROBATCHES:DEPTH``
            with any training settings behind, as ``window:2x1:m2:ahead:tables.sharding=row_wise``; ``bf16`` there stands for
            16 bits in compute, rows and dense gradients.
        meshes: of overlap, as ``REPLICASxSTAGES``.
        microbatches: of overlap.
        ranks: processes, one thread each.
        batch_size: rows a rank and step.
        rows, dim: of each of the 26 tables.
        blocks: of each contestant; they alternate.
        steps: timed steps of a block.
        warmup: steps of each block before those.
        profile: of predict and plan: the profile of this machine; made and written where there is no such file. Empty: made.
        out: directory of the results; empty: ``runs/bench/<action>-<date>-<time>``.
    """

    action: str = ""
    links: list[str] = field(default_factory=lambda: ["none", "4gbit", "1gbit", "400mbit"])
    models: list[str] = field(default_factory=lambda: ["dlrm"])
    ids: list[str] = field(default_factory=list)
    criteo: str = ""
    contestants: list[str] = field(default_factory=lambda: [*TORCHREC, "window:2x1:m1:ahead", "window:2x1:m1:ahead:bf16"])
    meshes: list[str] = field(default_factory=lambda: ["2x1", "1x2"])
    microbatches: list[int] = field(default_factory=lambda: [1, 2, 4, 8])
    ranks: int = 2
    batch_size: int = 2048
    rows: int = 200_000
    dim: int = 64
    blocks: int = 7
    steps: int = 8
    warmup: int = 2
    profile: str = ""
    out: str = ""


@dataclass(frozen=True)
class Contestant:
    """One way to train.

    Args:
        name: as it was given.
        kind: a TorchRec pipeline or one of recpipe's exchanges.
        replicas, stages, microbatches, depth: of recpipe: mesh and schedule.
        settings: further training settings, as ``key=value``.
    """

    name: str
    kind: str
    replicas: int = 1
    stages: int = 1
    microbatches: int = 1
    depth: str = "ahead"
    settings: tuple[str, ...] = ()

    @property
    def is_synchronous_torchrec(self) -> bool:
        return self.kind in SYNCHRONOUS

    @property
    def label(self) -> str:
        """For tables."""
        where = "TorchRec " if self.kind in TORCHREC else "recpipe "
        return where + self.name + (" (stale rows: not exact)" if self.kind in STALE else "")


@dataclass(frozen=True)
class Workload:
    """What a rank has to know about the work, whoever does it.

    Args:
        model: dlrm or dcn_v2.
        ids: real, skewed or uniform.
        num_batches: different global batches; steps go round them.
        others: as in `BenchConfig`.
    """

    model: str
    ids: str
    criteo: str
    ranks: int
    batch_size: int
    rows: int
    dim: int
    num_batches: int

    @property
    def global_batch(self) -> int:
        return self.ranks * self.batch_size


def parse_contestant(name: str, ranks: int) -> Contestant:
    """Reads a contestant's name.

    Raises:
        ConfigError: a part of it is unknown or does not fit the number of ranks.
    """
    kind, *parts = name.split(":")
    if kind in TORCHREC:
        if parts:
            raise ConfigError(f"contestants: {name}: a TorchRec pipeline takes no settings")
        return Contestant(name, kind)
    if kind not in EXCHANGES:
        raise ConfigError(f"contestants: {name}: unknown; {nearest(kind, (*TORCHREC, *EXCHANGES))}")
    if len(parts) < 3 or not _MICROBATCHES.fullmatch(parts[1]) or parts[2] not in DEPTHS:
        raise ConfigError(
            f"contestants: {name}: write EXCHANGE:REPLICASxSTAGES:mMICROBATCHES:DEPTH with DEPTH one of {', '.join(DEPTHS)}, "
            f"for instance window:2x1:m2:ahead"
        )
    replicas, stages = parse_mesh(parts[0], ranks)
    settings = tuple(one for part in parts[3:] for one in (BF16 if part == "bf16" else (part,)))
    return Contestant(name, kind, replicas, stages, int(parts[1][1:]), parts[2], settings)


def parse_mesh(text: str, ranks: int) -> tuple[int, int]:
    """Replicas and stages. Raises ConfigError where they do not multiply to the number of ranks."""
    found = _MESH.fullmatch(text)
    if found is None or int(found[1]) * int(found[2]) != ranks:
        raise ConfigError(
            f"mesh {text}: write REPLICASxSTAGES that multiply to the {ranks} ranks, for instance {ranks}x1"
        )
    return int(found[1]), int(found[2])


def workloads(config: BenchConfig) -> list[Workload]:
    """Every model on every kind of ids.

    Raises:
        ConfigError: an unknown name, a number below 1, or real ids without a file.
    """
    chosen = list(config.ids) or ["real" if config.criteo else "skewed", "uniform"]
    for key, values, known in (("models", config.models, MODELS), ("ids", chosen, IDS)):
        for value in values:
            if value not in known:
                raise ConfigError(f"{key}: {value}: unknown; {nearest(value, known)}")
    if "real" in chosen and not config.criteo:
        raise ConfigError("ids: real needs criteo=FILE, a Criteo text file; ids=[skewed] draws ids with the same skew")
    for key in ("ranks", "batch_size", "rows", "dim", "blocks", "steps"):
        if getattr(config, key) < 1:
            raise ConfigError(f"{key}={getattr(config, key)}: must be at least 1")
    sizes = (config.ranks, config.batch_size, config.rows, config.dim, config.steps + config.warmup)
    return [Workload(model, ids, config.criteo, *sizes) for model in config.models for ids in chosen]
