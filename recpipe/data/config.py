"""Settings of the data group: one plain dataclass behind each file in `conf/data`.

No torch, no hydra: the command line registers `SCHEMAS` and the data code reads attributes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

BAD_ID_POLICIES = ("error", "clamp", "hash", "oov", "drop")
NON_FINITE_POLICIES = ("error", "drop")
SHUFFLES = ("none", "window", "block", "full")
TRANSFORMS = ("auto", "log", "log1p", "squared_log", "standardize", "none")
VOCABULARIES = ("frequency", "hash")
SPLITS = ("fraction", "days")
# Texts that stand for a missing number, as spreadsheets, databases and pandas write them.
MISSING_NUMBERS = (
    "NA", "N/A", "n/a", "na", "#N/A", "<NA>", "NaN", "nan", "NAN", "-nan", "-NaN", "null", "NULL", "Null",
    "None", "none", "\\N", "-", "?",
)  # fmt: skip
# `NA` and `-` may be values of a category.
MISSING_CATEGORIES = ("\\N", "null", "NULL", "NaN", "nan", "None", "<NA>")
MULTI_HOT_DISTRIBUTIONS = ("uniform", "pareto")
# A text or a list of texts, checked by `prepare.inputs.given_places`: settings files know no such union.
Places: TypeAlias = Any


@dataclass
class DataConfig:
    """What every data set has.

    Args:
        name: the kind of data set, the name of its file in `conf/data`.
        shuffle: order of training rows: none, window, block, full.
        shuffle_rows: rows of a window or of a block.
        bad_ids: what to do with an id outside its table: error, clamp, hash, oov, drop.
        non_finite: what to do with a NaN or infinite dense value: error, or drop the row.
        num_workers: threads that build batches ahead of training; 0 builds them when asked.
        multi_hot_sizes: ids a row of each feature, made from its one-hot id when rows are read (MLPerf); empty: as stored.
        multi_hot_distribution: of the ids beside the first: uniform or pareto.
        multi_hot_seed: chooses them.
        pooling: sum or mean of the vectors of a row's ids, of single features, as `{tags: mean}`; sum where nothing is said.
    """

    name: str = ""
    shuffle: str = "full"
    shuffle_rows: int = 65536
    bad_ids: str = "error"
    non_finite: str = "error"
    num_workers: int = 1
    multi_hot_sizes: list[int] = field(default_factory=list)
    multi_hot_distribution: str = "uniform"
    multi_hot_seed: int = 0
    pooling: dict[str, str] = field(default_factory=dict)


@dataclass
class SyntheticData(DataConfig):
    """Rows from a seeded teacher; nothing is read.

    Args:
        num_train, num_valid, num_test: rows of each split.
        num_dense: dense columns.
        num_features: categorical columns.
        min_ids, max_ids: smallest and largest table; sizes in between are spaced by equal ratios.
        zipf: exponent of the id frequencies; 0 is uniform.
        mean_ids: mean number of ids in a row of the multi-hot features; 1 makes every feature one-hot.
        multi_hot_features: how many features are multi-hot (the last ones).
        missing_share: share of missing values (dense 0, id 0).
        base_rate: share of positive labels, roughly.
        signal: standard deviation of the teacher's logit; larger means an easier problem.
        teacher_seed: seed of the teacher and its rows; 0 takes the run's seed.
    """

    name: str = "synthetic"
    num_train: int = 400_000
    num_valid: int = 40_000
    num_test: int = 60_000
    num_dense: int = 13
    num_features: int = 26
    min_ids: int = 8
    max_ids: int = 2000
    zipf: float = 1.1
    mean_ids: float = 1.0
    multi_hot_features: int = 0
    missing_share: float = 0.05
    base_rate: float = 0.25
    signal: float = 1.5
    teacher_seed: int = 1


@dataclass
class PrepareConfig(DataConfig):
    """What every prepared data set has: where the files are, what is held out, how values become ids.

    Args:
        path: a file, a folder, a pattern ('day_*.csv', 'log/**/*.csv') or a list of these, local or remote (s3://..., anything
            that fsspec reads). Files of a folder or of a pattern whose names say valid or test are no training rows.
        valid_path, test_path: the same for the held-out splits; empty: the files whose names say so, else see the fractions.
        valid_fraction, test_fraction: share of rows held out; -1 means 0.1 without given files, else 0
            (with files that only their names hold out: 0 for their split).
        split_seed: seed of the choice of held-out rows.
        vocabulary: frequency (ids by frequency on training rows) or hash.
        frequency_threshold: values seen less often in training rows share id 1.
        frequency_thresholds: thresholds of single columns, as `{user: 5}`.
        max_ids: largest table; rarer values share id 1; 0 means no limit.
        hash_size: rows of every table with vocabulary=hash.
        dense_transform: log (of x + 3), log1p, squared_log, standardize, none, or auto: chosen for each column by its
            training rows (log1p for skewed counts, else standardize).
        transforms: transform of single dense columns, as `{price: standardize}`.
        dense_missing: raw value that stands for a missing one; null: the mean where standardized, else 0.
        out: the prepared directory; empty: a directory under `cache_dir` named by the settings and the files.
        cache_dir: where prepared directories go.
        max_bad_share: largest share of bad lines that is accepted.
        memory_limit: bytes, or with a unit such as 2GiB.
        threads: threads of the preparation; 0 means one a core.
        rows_per_shard: rows of one output file.
    """

    path: Places = ""
    valid_path: Places = ""
    test_path: Places = ""
    valid_fraction: float = -1.0
    test_fraction: float = -1.0
    split_seed: int = 0
    vocabulary: str = "frequency"
    frequency_threshold: int = 1
    frequency_thresholds: dict[str, int] = field(default_factory=dict)
    max_ids: int = 0
    hash_size: int = 100_000
    dense_transform: str = "log"
    transforms: dict[str, str] = field(default_factory=dict)
    dense_missing: float | None = None
    out: str = ""
    cache_dir: str = ".cache/recpipe"
    max_bad_share: float = 0.001
    memory_limit: str = "2GiB"
    threads: int = 0
    rows_per_shard: int = 1 << 20


@dataclass
class CriteoData(PrepareConfig):
    """The Criteo text format: label, 13 integers, 26 hex values, tab separated; Kaggle and Terabyte.

    Args:
        split: fraction, or days (the last `day_N` file: first half validates, second half tests).
        dense_ids: the 13 integers are categorical features, too, in buckets of floor(ln(x)^2).
    """

    name: str = "criteo"
    frequency_threshold: int = 10
    dense_missing: float | None = 0.0
    split: str = "fraction"
    dense_ids: bool = False


@dataclass
class TableData(PrepareConfig):
    """Delimited text with or without a header, or Parquet, by column names.

    Args:
        format: csv or parquet; empty: by the file's first bytes.
        delimiter: one character, or tab, comma, semicolon, pipe, space, \\t, \\x01; empty: a tab for .tsv, .tab,
            else a comma.
        header: the first line of each text file has the column names.
        columns: all column names in order, for text without a header.
        label: the label's column; 0 or 1 unless `label_positive` is given.
        label_positive: values of the label that count as 1, as `[yes]` or `[4, 5]`; every other one counts as 0.
        missing: texts of dense columns that stand for a missing number, beside the empty one.
        missing_categories: the same of categorical columns.
        dense, categorical: columns.
        multi_valued: those categorical columns that hold several values, joined by `separator`.
        weights: column of weights for a multi-valued column, as `{tags: tag_weights}`.
    """

    name: str = "table"
    frequency_threshold: int = 2
    dense_transform: str = "auto"
    format: str = ""
    delimiter: str = ""
    header: bool = True
    columns: list[str] = field(default_factory=list)
    label: str = "label"
    label_positive: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=lambda: list(MISSING_NUMBERS))
    missing_categories: list[str] = field(default_factory=lambda: list(MISSING_CATEGORIES))
    dense: list[str] = field(default_factory=list)
    categorical: list[str] = field(default_factory=list)
    multi_valued: list[str] = field(default_factory=list)
    separator: str = "^"
    weights: dict[str, str] = field(default_factory=dict)


@dataclass
class PreparedData(DataConfig):
    """A directory that `recpipe data prepare` wrote.

    Args:
        path: the directory, local or remote.
        cache_dir: where files of a remote one are copied, each when it is first read.
    """

    name: str = "prepared"
    path: str = ""
    cache_dir: str = ".cache/recpipe"


SCHEMAS: dict[str, type[DataConfig]] = {
    "synthetic": SyntheticData,
    "criteo": CriteoData,
    "table": TableData,
    "frappe": TableData,
    "prepared": PreparedData,
    "mlperf": PreparedData,
}
