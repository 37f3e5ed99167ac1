"""Which rows a checkpoint scores: those of a file, by its own encoding, or those that its run held out."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recpipe.comm import Groups
from recpipe.data import Dataset, open_dataset
from recpipe.data.dataset import SPLITS
from recpipe.data.encoding import Encoding, differences, encoding_of
from recpipe.data.paths import is_remote, to_path
from recpipe.data.prepare.given import Given, encode_given, given_dataset
from recpipe.data.prepare.inputs import MANIFEST
from recpipe.data.prepare.job import prepare
from recpipe.data.prepared import prepared_dataset
from recpipe.errors import CheckpointError, ConfigError, RecpipeError
from recpipe.train.encoded import encoding_in
from recpipe.train.setup import open_data
from recpipe.train.taken import take_places

logger = logging.getLogger(__name__)
OF_THE_RUN = ("data.path", "data.valid_path", "data.test_path")
"""Places that are not opened where other rows are given."""


@dataclass(frozen=True)
class Chosen:
    """Rows to score.

    Args:
        dataset: has them.
        split: under this name.
        said: what they are, in words.
        unseen: by feature, the share of values without an id: to be expected, and here; empty where none can be.
        columns: carried columns of the file; on rank 0, where some were asked for.
    """

    dataset: Dataset
    split: str
    said: str
    unseen: dict[str, dict[str, float]] = field(default_factory=dict)
    columns: Any = None


@dataclass(frozen=True)
class Wanted:
    """What is asked for.

    Args:
        path: a file or directory of raw rows, or a prepared directory.
        split: of a prepared directory; empty: the one that it has.
        prepared: a prepared directory to encode by, for checkpoints without an encoding.
        max_bad_share: share of lines that may be left out.
        columns: to carry along.
    """

    path: str
    split: str = ""
    prepared: str = ""
    max_bad_share: float = 0.0
    columns: Sequence[str] = ()


def given_rows(checkpoint: Path, trained: Any, wanted: Wanted, work: Path, groups: Groups) -> Chosen:
    """Rows of a file or a directory, encoded as the checkpoint says. Collective.

    Args:
        trained: settings of the run.
        work: directory for the encoded rows.

    Raises:
        ConfigError: the model was not trained on rows that came from a file.
        DataError: lines that cannot be used, or columns that are missing.
        CheckpointError: prepared rows that were encoded in another way.
    """
    encoding = _encoding(checkpoint, trained, wanted.prepared, groups)
    if (to_path(wanted.path) / MANIFEST).is_file():
        return _prepared_rows(encoding, trained, wanted)
    given, text = Given([]), ""
    if groups.rank == 0:
        carried = tuple(wanted.columns)
        given = encode_given(encoding, trained.data, wanted.path, work, logger.info, wanted.max_bad_share, carried)
        shares = {one.feature: {"expected": one.expected, "here": round(one.share, 6)} for one in given.unseen}
        text = json.dumps([given.records, shares])
    records, unseen = json.loads(groups.broadcast_text(text))
    rows = sum(record["rows"] for record in records)
    left_out = f" ({given.bad:,} bad lines left out)" if given.bad else ""
    said = f"all {rows:,} rows of {wanted.path}{left_out}, encoded by {checkpoint}"
    dataset = given_dataset(encoding, trained.data, records, work, said)
    return Chosen(dataset, "test", said, unseen, given.columns)


def _encoding(checkpoint: Path, trained: Any, prepared: str, groups: Groups) -> Encoding:
    """The checkpoint's own; of an older one, that of the run's rows, made again where they are not there."""
    found = encoding_in(checkpoint)
    if trained.data.name == "synthetic":
        raise ConfigError(
            f"{checkpoint}: the model was trained on synthetic rows, which come from no file: it encodes none"
        )
    if found is not None:
        other = differences(found, encoding_of(prepared)) if prepared else []
        if other:
            raise CheckpointError(f"prepared={prepared}: is not how {checkpoint} encodes rows: {'; '.join(other[:5])}")
        return found
    take_places(trained, (), checkpoint)
    text = prepared or (trained.data.path if trained.data.name == "prepared" else "")
    if not text and groups.rank == 0:
        logger.warning(
            "WARNING: %s was written by an older version and has no encoding: rows are encoded by the vocabularies of "
            "data.path=%s as it is now; scores are right only if that has not changed", checkpoint, trained.data.path,
        )  # fmt: skip
    if not text:
        text = groups.broadcast_text(str(prepare(trained.data, logger.info)) if groups.rank == 0 else "")
    return encoding_of(text)


def _prepared_rows(encoding: Encoding, trained: Any, wanted: Wanted) -> Chosen:
    """Rows of a prepared directory."""
    if wanted.columns:
        raise ConfigError(
            f"output_columns: {wanted.path} is a prepared directory, which has ids only; give the raw file"
        )
    other = differences(encoding, encoding_of(wanted.path))
    if other:
        raise CheckpointError(
            f"{wanted.path}: its rows were not encoded as the checkpoint does it: {'; '.join(other[:5])}"
        )
    dataset = _in_order(prepared_dataset(wanted.path, trained.data, trained.seed), wanted.path, trained)
    there = [split for split in SPLITS if dataset.num_rows(split)]
    split = wanted.split or (there[0] if len(there) == 1 else "test")
    return Chosen(dataset, split, f"{split} of {dataset.source}")


def _in_order(dataset: Dataset, path: str, trained: Any) -> Dataset:
    """The same rows, those of training too in stored order."""
    if trained.data.shuffle == "none":
        return dataset
    trained.data.shuffle = "none"
    return prepared_dataset(path, trained.data, trained.seed)


def synthetic_rows(split: str, trained: Any) -> Dataset:
    """Synthetic rows come from no file; those of a split can be made again."""
    if split not in SPLITS:
        raise ConfigError(
            f"input={split}: this model was trained on synthetic rows, which come from no file; input=test scores those of "
            f"a split ({', '.join(SPLITS)})"
        )
    # Rows of training come in an order of their own.
    trained.data.shuffle = "none"
    return open_dataset(trained.data, trained.seed)


def held_out_rows(checkpoint: Path, trained: Any, split: str, groups: Groups) -> Chosen:
    """The rows that the run held out, as it had them. Collective.

    Raises:
        CheckpointError: they are gone, or no longer the same; says how to evaluate other rows.
    """
    saved = encoding_in(checkpoint)
    if saved is None:
        dataset = open_data(trained, groups)
        return Chosen(dataset, split, f"{split} of {dataset.source}")
    found = on_first(groups, lambda: find_rows(saved, trained.data, checkpoint))
    dataset = prepared_dataset(found, trained.data, trained.seed)
    return Chosen(dataset, split, f"{split} of {dataset.source}", _held_out_shares(dataset, split))


@contextmanager
def shared_directory(beside: str, groups: Groups) -> Iterator[Path]:
    """A directory for a while, made and removed by rank 0, known to all. Collective.

    Args:
        beside: a file that all ranks can see; empty: the system's place for such directories.
    """
    where = Path(beside).parent if beside else None
    made = tempfile.mkdtemp(prefix=".recpipe-rows-", dir=where) if groups.rank == 0 else ""
    try:
        yield Path(groups.broadcast_text(made)) / "rows"
    finally:
        if made:
            shutil.rmtree(made, ignore_errors=True)


def on_first(groups: Groups, work: Callable[[], str]) -> str:
    """What rank 0 finds, on every rank."""
    return groups.broadcast_text(work() if groups.rank == 0 else "")


def find_rows(saved: Encoding, data: Any, checkpoint: Path) -> str:
    """The prepared directory of a run's rows: where it was, or made again; the content decides.

    Args:
        saved: the encoding of the checkpoint.
        data: data settings of the run.
        checkpoint: for messages.
    """
    place = str(saved.manifest["origin"]["directory"])
    if holds(place, saved):
        return place
    way_out = "evaluate rows of a file: eval data_path=FILE"
    try:
        made = str(data.path) if data.name == "prepared" else _made_again(saved, data)
        is_same = holds(made, saved)
    except RecpipeError as error:
        raise CheckpointError(
            f"{checkpoint}: the rows of its run are not at {place} any more ({error}); {way_out}"
        ) from None
    if not is_same:
        raise CheckpointError(
            f"{checkpoint}: data.path={data.path} no longer holds the rows that its run was trained on and held out from; "
            f"{way_out}"
        )
    return made


def _made_again(saved: Encoding, data: Any) -> str:
    """The rows of the run's settings, prepared as then."""
    return str(prepare(data, logger.info, known=saved if "base" in saved.manifest else None))


def holds(place: str, saved: Encoding) -> bool:
    """A prepared directory has the same rows, encoded in the same way."""
    if is_remote(place):
        return False
    try:
        now = encoding_of(place)
    except (RecpipeError, OSError):
        return False
    return now.rows_digests == saved.rows_digests and now.digest == saved.digest


def _held_out_shares(dataset: Dataset, split: str) -> dict[str, dict[str, float]]:
    """Shares of unknown values by feature."""
    return {n: {"expected": one["expected"], "here": one[split]} for n, one in dataset.unseen.items() if split in one}
