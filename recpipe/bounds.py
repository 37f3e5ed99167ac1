"""The range of every number that a user can set, by the dotted name of the setting; standard library only.

A number outside its range cannot be meant: it is refused before anything is opened, with the name, the value and the range.
Commands that share a name share the range.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from recpipe.errors import ConfigError

_MOST = 2**53


@dataclass(frozen=True)
class Bound:
    """The range of a number.

    Args:
        low, high: the smallest and the largest value.
        above: `low` itself is excluded.
        below: `high` itself is excluded.
        note: a clause for the message, for instance the meaning of null.
    """

    low: float
    high: float
    above: bool = False
    below: bool = False
    note: str = ""

    def problem(self, value: float) -> str:
        """What is wrong with a value, as the end of a sentence; empty if nothing is."""
        if math.isnan(value):
            return "must be a number, not NaN"
        if value < self.low or (self.above and value == self.low):
            least = "positive" if self.above and not self.low else f"{'above' if self.above else 'at least'} {_shown(self.low)}"
            return f"must be {least}{self.note}"
        if value > self.high or (self.below and value == self.high):
            return f"must be {'below' if self.below else 'at most'} {_shown(self.high)}{self.note}"
        return ""


def _counts(low: int, high: float = _MOST, note: str = "") -> Bound:
    return Bound(low, high, note=note)


# Sizes are bounded where a larger one is a slip of the hand; the memory of the machine is a question of its own.
_BOUNDS: tuple[tuple[Bound, str], ...] = (
    (_counts(1, 4096), "launch.nproc ranks"),
    (_counts(1, 1024), "launch.threads mesh.stages planner.stages"),
    (_counts(1, 10**8), "launch.timeout_seconds"),
    (_counts(0, 10**8), "launch.watchdog_seconds"),
    (_counts(0, 10**6), "launch.max_restarts checkpoint.keep_latest_k early_stopping.patience"),
    (_counts(1, 10**5), "steps"),
    (_counts(2, 10**4), "planner.steps"),
    (_counts(1, 2**20), "mesh.replicas tables.local_size parts blocks"),
    (_counts(1, 2**16), "schedule.microbatches schedule.try_microbatches planner.microbatches microbatches"),
    (_counts(1, 1024), "schedule.chunks schedule.try_chunks schedule.pipelines schedule.copies planner.chunks"),
    (_counts(0, 2**31), "schedule.buffers cost.ranks_per_node"),
    (Bound(0, 10**9, above=True), "schedule.memory"),
    (Bound(0, 10**30), "cost.forward cost.input cost.weight cost.overhead cost.optimizer cost.profile cost.activation_bytes"),
    (Bound(0, 10**30), "cost.weight_bytes cost.near.alpha cost.far.alpha cost.delay cost.route cost.lookup cost.update"),
    (Bound(0, 10**30), "cost.row_bytes cost.fused"),
    (Bound(0, 1), "cost.early cost.first_use"),
    (Bound(0, 10**30, above=True), "cost.microseconds"),
    (Bound(0, math.inf, above=True), "cost.near.bandwidth cost.far.bandwidth"),
    (Bound(0, 10**30), "optimizer.*.learning_rate optimizer.*.eps optimizer.*.l2 optimizer.*.weight_decay"),
    (Bound(0, 10**30, above=True, note="; null is for none"), "optimizer.*.clip_norm"),
    (_counts(0), "lr.* trace.steps tables.replicate_below checkpoint.every_steps seed"),
    (_counts(0, 2**20), "tables.pins.* planner.constraints.*.ranks"),
    (_counts(1), "log.every_steps log.window_rows guard.max_skipped_in_a_row epochs"),
    (Bound(0, 10**8), "checkpoint.every_minutes"),
    (_counts(1, 2**31 - 1), "batch_size"),
    (_counts(1, 2**31 - 1, "; null is for that of training"), "test_batch_size"),
    (_counts(1, note="; null is for all"), "limit_train_batches limit_val_batches limit_test_batches"),
    (_counts(1, note="; null is for once an epoch"), "validation_freq_within_epoch"),
    (Bound(0, 10**30), "tolerance"),
    (_counts(0, 10**5), "width warmup"),
    (_counts(1, 2**40), "rows"),
    (_counts(1, 2**20), "dim"),
    (Bound(0, 10**30), "topology.*.alpha_us topology.*.peer_us"),
    (Bound(0, math.inf, above=True), "topology.*.bandwidth_gbs"),
    (Bound(0, 1, below=True), "topology.reserved"),
    (_counts(1, 2**48), "workload.num_embeddings_per_feature"),
    (Bound(0, 10**6, above=True), "workload.multi_hot_sizes"),
    (Bound(0, 100), "workload.skew data.zipf"),
    (_counts(0, 10**6), "workload.num_dense data.num_dense data.num_features data.multi_hot_features"),
    (Bound(0, 10**9, above=True), "planner.memory_gb planner.seconds"),
    (_counts(1, 2**48), "planner.global_batch planner.effort"),
    (_counts(0, 1024), "data.num_workers data.threads"),
    (_counts(1), "data.shuffle_rows data.frequency_threshold data.frequency_thresholds.*"),
    (_counts(1, 10**6), "data.multi_hot_sizes"),
    (_counts(0), "data.multi_hot_seed data.teacher_seed data.split_seed data.num_train data.num_valid data.num_test"),
    (_counts(0, 2**48), "data.max_ids"),
    (_counts(1, 2**48), "data.min_ids"),
    (_counts(3, 2**48), "data.hash_size"),
    (_counts(1, 2**31), "data.rows_per_shard"),
    (Bound(1, 10**6), "data.mean_ids"),
    (Bound(0, 1), "data.missing_share"),
    (Bound(0, 1, above=True, below=True), "data.base_rate"),
    (Bound(0, 1, below=True), "data.max_bad_share"),
    (Bound(0, 10**6), "data.signal"),
    (Bound(-1, 1, below=True, note="; -1 is for the default"), "data.valid_fraction data.test_fraction"),
    (Bound(-(10**300), 10**300), "data.dense_missing"),
    (_counts(1, 2**16), "model.embedding_dim model.num_layers model.num_heads model.dcn_num_layers"),
    (_counts(1, 2**24), "model.*_layer_sizes model.num_fm_vectors model.num_linear_vectors model.fm_rank"),
    (_counts(1, 2**24), "model.feed_forward_dim"),
    (_counts(0, 2**24), "model.dcn_low_rank_dim"),
    (Bound(0, 1, below=True), "model.dropout"),
    (Bound(0, 10**30), "model.row_init_std"),
)
_BY_NAME = {name: bound for bound, names in _BOUNDS for name in names.split() if "*" not in name}
_BY_PATTERN = [(name, bound) for bound, names in _BOUNDS for name in names.split() if "*" in name]
# Files of a user's own may hold numbers that no record names, as the nodes of a topology.
_ANY = Bound(-math.inf, math.inf)


def bound_of(name: str) -> Bound | None:
    """The range of a setting; None for a setting that has none."""
    pattern = (bound for pattern, bound in _BY_PATTERN if fnmatchcase(name, pattern))
    return _BY_NAME.get(name) or next(pattern, None)


def check_bounds(settings: Mapping[str, Any]) -> None:
    """Looks at every number of a configuration.

    Args:
        settings: plain mappings, lists and values, with all interpolations resolved.

    Raises:
        ConfigError: a number outside its range, or NaN.
    """
    for name, value, many in _numbers(settings, ""):
        each = value if many else [value]
        bound = bound_of(name) or _ANY
        problem = next((said for said in map(bound.problem, each) if said), "")
        if problem:
            raise ConfigError(f"{name}={value}: {'each ' if many else ''}{problem}")


def _numbers(node: Any, name: str) -> Iterator[tuple[str, Any, bool]]:
    """(name, number or list of numbers, whether it is a list) of everything below a node."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _numbers(value, f"{name}.{key}" if name else str(key))
    elif isinstance(node, Sequence) and not isinstance(node, str | bytes):
        numbers = [value for value in node if _is_number(value)]
        if numbers:
            yield name, numbers, True
        for value in node:
            if not _is_number(value):
                yield from _numbers(value, name)
    elif _is_number(node):
        yield name, node, False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) and abs(value) < 10**16 else f"{value:g}"
