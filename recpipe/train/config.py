"""The settings of `recpipe train`, `eval` and `verify`: a typed record behind every group of `conf/`.

Leaf names are those of the DLRM reference trainer. `batch_size` is per replica and step; the global batch is printed beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from recpipe.errors import ConfigError
from recpipe.schedule.settings import CostSettings, ScheduleSettings

# Settings that are one of a few names.
CHOICES: dict[str, tuple[str, ...]] = {
    "exchange.kind": ("window", "pooled"),
    "optimizer.table.name": ("sgd", "adagrad", "rowwise_adagrad", "adam"),
    "optimizer.dense.name": ("sgd", "adagrad", "adam", "adamw"),
    "early_stopping.metric": ("auc", "logloss", "ne"),
    "log.progress": ("auto", "bar", "plain", "none"),
    "checkpoint.keep_best": ("", "auc", "logloss", "ne"),
    "guard.non_finite": ("stop", "skip"),
    "mesh.feed": ("owner", "everyone"),
    "compute_dtype": ("bfloat16",),
    "exchange.wire_dtype": ("bfloat16",),
    "exchange.dense_wire_dtype": ("bfloat16",),
    "dtype": ("float32", "float64"),
}


@dataclass
class RunConfig:
    """Where a run leaves its files.

    Args:
        dir: run directory, made by rank 0 alone; empty: ``runs/<command>/<date>-<time>-<model>-<data>``.
        overwrite: allow the directory of an earlier run; what that run wrote is replaced, other files stay.
    """

    dir: str = ""
    overwrite: bool = False


@dataclass
class LaunchConfig:
    """Workers started by the command itself. Under torchrun or SLURM the workers found are used instead.

    Args:
        nproc: local processes.
        threads: compute threads of each.
        timeout_seconds: a collective that takes longer ends the run.
        watchdog_seconds: a rank that stands still for so long while others wait for it is named, and all leave; 0: no
            such watch. Longer than anything a single rank does alone, such as building a batch.
        max_restarts: times that local workers are started again, from the last checkpoint, after one has died.
        check_memory: refuse to start where tables and tower cannot fit in the memory that is free; false: say so and start.
    """

    nproc: int = 2
    threads: int = 1
    timeout_seconds: int = 600
    watchdog_seconds: int = 120
    max_restarts: int = 0
    check_memory: bool = True


@dataclass
class MeshConfig:
    """Ranks as replicas x stages.

    Args:
        stages: ranks of one pipeline.
        replicas: data-parallel copies of it; null: they follow from the number of ranks.
        cuts: names of the blocks that later stages of the tower begin with; empty: cut by counted operations.
        feed: who reads rows: ``owner``, the rank that runs the first stage; or ``everyone``, a part each, handed on.
    """

    stages: int = 1
    replicas: int | None = None
    cuts: list[str] = field(default_factory=list)
    feed: str = "owner"


@dataclass
class ExchangeConfig:
    """How rows travel.

    Args:
        kind: ``window`` (unique rows of a step, once) or ``pooled`` (TorchRec: every bag, pooled by its owner).
        wire_dtype: bfloat16 halves the bytes of rows and row gradients on their way; tables and sums keep `dtype`. Null: that.
        dense_wire_dtype: bfloat16 halves the bytes of the tower's gradients between its copies: each part and the sum are
            rounded once, the sum is made in `dtype`, and all copies go on with the same one. Null: `dtype`.
    """

    kind: str = "window"
    wire_dtype: str | None = None
    dense_wire_dtype: str | None = None


@dataclass
class TablesConfig:
    """Where tables live.

    Args:
        sharding: auto, or one type for all: table_wise, row_wise, column_wise, table_column_wise, table_row_wise, grid,
            replicated.
        replicate_below: with auto, tables of fewer rows are replicated.
        local_size: ranks of a node, for table_row_wise, table_column_wise and grid.
        per_table: type by table name, as ``{t_cat_0: row_wise}``.
        exchange_per_table: window or pooled by table name.
        pins: ranks by table name, as ``{t_cat_0: [0, 1]}``.
    """

    sharding: str = "auto"
    replicate_below: int = 0
    local_size: int = 1
    per_table: dict[str, str] = field(default_factory=dict)
    exchange_per_table: dict[str, str] = field(default_factory=dict)
    pins: dict[str, list[int]] = field(default_factory=dict)


@dataclass
class TableOptimizerConfig:
    """One exact update a row and step.

    Args:
        name: sgd, adagrad, rowwise_adagrad, adam (moments of untouched rows stand still).
        learning_rate: before the factor of `lr`.
        eps: outside the root.
        l2: weight of half the squared norm of touched rows.
    """

    name: str = "adagrad"
    learning_rate: float = 0.02
    eps: float = 1e-8
    l2: float = 0.0


@dataclass
class DenseOptimizerConfig:
    """Of the tower.

    Args:
        name: sgd, adagrad, adam, adamw.
        learning_rate: before the factor of `lr`.
        eps: outside the root; not used by sgd.
        weight_decay: decoupled for adamw, else added to the gradient.
        clip_norm: largest norm of the gradient of all tower weights together; larger ones are scaled down. Null: any.
            Gradients of table rows are never clipped.
    """

    name: str = "adam"
    learning_rate: float = 1e-3
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float | None = None


@dataclass
class OptimizerConfig:
    """Rules of rows and tower."""

    table: TableOptimizerConfig = field(default_factory=TableOptimizerConfig)
    dense: DenseOptimizerConfig = field(default_factory=DenseOptimizerConfig)


@dataclass
class LrConfig:
    """Factor on both learning rates: linear warm-up, constant, (1 - x)^2 decay, then frozen. Steps count updates."""

    lr_warmup_steps: int = 0
    lr_decay_start: int = 0
    lr_decay_steps: int = 0


@dataclass
class EarlyStoppingConfig:
    """Stop when validation no longer gets better, and test the best weights.

    Args:
        patience: validations without a new best before stopping; 0 trains on.
        metric: auc, logloss or ne.
    """

    patience: int = 0
    metric: str = "auc"


@dataclass
class CheckpointConfig:
    """When checkpoints are written, and which stay. The end of a run is saved by `save_checkpoint`.

    Args:
        every_steps: steps between checkpoints; 0: none by steps.
        every_minutes: minutes between checkpoints; 0: none by time.
        every_epoch: one at the end of each epoch.
        keep_latest_k: how many of these stay; 0 keeps all.
        keep_best: also keep the one with the best validation by this metric: auc, logloss, ne; empty: none.
        async_save: copy the state and write it while training goes on; takes the memory of a second copy meanwhile.
    """

    every_steps: int = 0
    every_minutes: float = 30.0
    every_epoch: bool = False
    keep_latest_k: int = 2
    keep_best: str = ""
    async_save: bool = False


@dataclass
class GuardConfig:
    """What happens at a loss or gradient that is not finite; nothing is updated either way.

    Args:
        non_finite: stop, or skip (the step is left out and counted).
        max_skipped_in_a_row: with skip, so many steps in a row end the run.
    """

    non_finite: str = "stop"
    max_skipped_in_a_row: int = 10


@dataclass
class LogConfig:
    """What is shown and written.

    Args:
        progress: auto (a bar on a terminal, lines elsewhere), bar, plain or none.
        every_steps: steps between lines in metrics.jsonl.
        tensorboard: also write TensorBoard events.
        window_rows: rows of the metric window.
    """

    progress: str = "auto"
    every_steps: int = 20
    tensorboard: bool = False
    window_rows: int = 10_000_000


@dataclass
class TraceConfig:
    """Record some steps: trace.json (Perfetto), gantt.svg (measured over predicted), ledger.json, in RUN_DIR/trace.

    Args:
        steps: first and one past the last, as ``[20,23]``; empty: record nothing.
    """

    steps: list[int] = field(default_factory=list)


def check_trace(steps: Sequence[int], total_steps: int | None = None) -> None:
    """Refuses what is no range of recorded steps.

    Args:
        steps: of `TraceConfig`.
        total_steps: of the run, where it is known.

    Raises:
        ConfigError: not a first step and one at least two behind it, or outside the run.
    """
    fits = len(steps) == 2 and 0 <= steps[0] < steps[1] - 1
    if steps and not (fits and (total_steps is None or steps[1] <= total_steps)):
        within = "" if total_steps is None else f", within the {total_steps} steps of this run"
        raise ConfigError(
            f"trace.steps={list(steps)}: write [first,stop) with at least two steps, as trace.steps=[20,23]{within}"
        )


@dataclass
class TrainConfig:
    """Root of ``conf/train.yaml``.

    Args:
        resume: auto (the newest whole checkpoint of `run.dir`, or a new run where there is none), or a run directory or a
            checkpoint to go on from. Settings come from it; those on the command line change them.
        resume_allow_grow: let tables have more rows than in the checkpoint; new rows start as in a new run.
    """

    data: Any = None
    model: Any = None
    exchange: ExchangeConfig = field(default_factory=ExchangeConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    run: RunConfig = field(default_factory=RunConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    schedule: ScheduleSettings = field(default_factory=lambda: ScheduleSettings(microbatches=None, embedding="ahead"))
    cost: CostSettings = field(default_factory=CostSettings)
    tables: TablesConfig = field(default_factory=TablesConfig)
    lr: LrConfig = field(default_factory=LrConfig)
    early_stopping: EarlyStoppingConfig = field(default_factory=EarlyStoppingConfig)
    log: LogConfig = field(default_factory=LogConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    plan: str = ""
    resume: str = ""
    resume_allow_grow: bool = False
    batch_size: int = 2048
    test_batch_size: int | None = None
    epochs: int = 1
    limit_train_batches: int | None = None
    limit_val_batches: int | None = None
    limit_test_batches: int | None = None
    drop_last_training_batch: bool = False
    validation_freq_within_epoch: int | None = None
    save_checkpoint: bool = True
    dtype: str = "float32"
    compute_dtype: str | None = None
    seed: int = 0


@dataclass
class EvalConfig:
    """Root of ``conf/eval.yaml``: scores a checkpoint, on the rows that its run held out or on those of a file.

    Args:
        checkpoint: a directory such as ``runs/train/.../checkpoints/final``, or that of a run: its newest whole one.
        split: valid or test: of the run's rows, or of a prepared directory; a file is evaluated whole.
        data_path: a file or directory of raw rows, all of which are evaluated, encoded by the checkpoint; or a prepared
            directory whose rows were encoded in the same way. Empty: the rows that the run held out.
    """

    checkpoint: str = ""
    split: str = "test"
    data_path: str = ""
    tables: TablesConfig = field(default_factory=TablesConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    test_batch_size: int | None = None
    limit_test_batches: int | None = None
    output: str = ""


@dataclass
class VerifyConfig(TrainConfig):
    """Root of ``conf/verify.yaml``: a training configuration, run beside the single-process reference.

    Args:
        steps: steps that both take.
        tolerance: largest difference over max(1, size) that passes; null: 1e-12 in float64, 1e-6 in float32.
    """

    steps: int = 50
    tolerance: float | None = None
