"""The rows of a run that goes on: its own, or those of a new day, whose new values come behind the known ones."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from recpipe.comm import Groups
from recpipe.data import Dataset
from recpipe.data.encoding import FREE, Encoding, differences, encoding_of
from recpipe.data.prepare.job import prepare, result_name
from recpipe.data.prepare.settings import effective
from recpipe.data.prepared import prepared_dataset
from recpipe.errors import CheckpointError, DataError
from recpipe.train.encoded import encoding_in
from recpipe.train.progress import Progress
from recpipe.train.resume import Source
from recpipe.train.rows import holds, on_first
from recpipe.train.setup import open_data

logger = logging.getLogger(__name__)
# Of a run's progress: what belongs to its rows, and begins anew with other ones.
_OF_A_DAY = ("epoch", "row", "train_rows", "validated", "finished", "best")


def opening(source: Source | None) -> Callable[[Any, Groups], Dataset]:
    """How a run opens its data: as its settings say, or, where it goes on, as its checkpoint encodes rows."""
    return open_data if source is None else lambda cfg, groups: _open(cfg, source, groups)


def _open(cfg: Any, source: Source, groups: Groups) -> Dataset:
    """The rows of the settings, by the encoding of the checkpoint. Collective.

    Raises:
        CheckpointError: they cannot be encoded so; names what is another.
    """
    saved = encoding_in(source.folder) if groups.rank == 0 else None
    mode = on_first(groups, lambda: "own" if saved is None or cfg.data.name == "synthetic" else "known")
    if mode == "own":
        if groups.rank == 0 and cfg.data.name != "synthetic":
            logger.warning(
                "WARNING: %s was written by an older version and has no encoding: ids are made anew from data.path=%s, and are "
                "right only if these are the rows that it was trained on", source.folder, cfg.data.path,
            )  # fmt: skip
        return open_data(cfg, groups)

    def place() -> str:
        assert saved is not None
        return _place(cfg.data, source, saved)

    return prepared_dataset(on_first(groups, place), cfg.data, cfg.seed)


def _place(data: Any, source: Source, saved: Encoding) -> str:
    """The prepared directory, made now unless it is there."""
    if data.name == "prepared":
        place = str(data.path)
    else:
        _check_settings(data, source, saved)
        place = _own(data, source, saved) or str(prepare(data, logger.info, known=saved))
    now = encoding_of(place)
    _refuse(source, differences(saved, now))
    if data.multi_hot_sizes and _grown(saved, now):
        _refuse(source, ["data.multi_hot_sizes makes bags by the size of a table: with new values all bags would change"])
    return place


def _refuse(source: Source, found: list[str]) -> None:
    if found:
        more = f"; and {len(found) - 5} more" if len(found) > 5 else ""
        raise CheckpointError(f"the data do not fit {source.folder}: {'; '.join(found[:5])}{more}")


def _check_settings(data: Any, source: Source, saved: Encoding) -> None:
    """The command line changes no setting that decides how a row is encoded."""
    now, before = effective(data), saved.settings
    if not before:
        _refuse(source, [f"it was trained on ids that were given; data={data.name} makes ids from values"])
    keys = [key for key in now if key in before and key not in FREE and now[key] != before[key]]
    _refuse(source, [f"data.{key} is {before[key]} in the checkpoint, {now[key]} here" for key in keys])


def _own(data: Any, source: Source, saved: Encoding) -> str:
    """The directory that the run's own rows were prepared in, where the settings mean these rows; else empty."""
    place = str(saved.manifest["origin"]["directory"])
    if not holds(place, saved):
        return ""
    try:
        name = result_name(data, saved.manifest.get("base", {}).get("digest", ""))
    except DataError:
        # The files are gone, and not needed.
        paths = ("path", "valid_path", "test_path")
        if all(data.get(one) == source.cfg.data.get(one) for one in paths):
            return place
        raise
    return place if name == saved.manifest["digest"] else ""


def _grown(saved: Encoding, now: Encoding) -> dict[str, int]:
    """New ids by feature."""
    pairs = zip(saved.manifest["features"], now.manifest["features"], strict=True)
    counts = {old["name"]: new["num_ids"] - old["num_ids"] for old, new in pairs}
    return {name: count for name, count in counts.items() if count}


def continued(source: Source | None, cfg: Any, dataset: Dataset, groups: Groups) -> Source | None:
    """Where the run goes on in these rows: where it was, or at the first row of a new day.

    Raises:
        CheckpointError: the checkpoint was written inside an epoch of other rows that the settings do not call new ones.
    """
    saved = None if source is None else encoding_in(source.folder, checked=False)
    if source is None or saved is None or dataset.encoding is None:
        return source
    is_same = saved.rows_digests["train"] == dataset.encoding.rows_digests["train"]
    is_named = cfg.data.path != source.cfg.data.get("path")
    if groups.rank == 0:
        _tell(source, saved, dataset, is_same, is_named)
    if is_same or not (is_named or source.progress.row):
        return source
    if not is_named:
        raise CheckpointError(
            f"{source.folder}: was written at row {source.progress.row} of an epoch of other training rows than data.path="
            f"{cfg.data.path} has now; give new rows another name (data.path=NEW begins at their first row), or resume from "
            f"the end of an epoch (checkpoint.every_epoch=true)"
        )
    new = Progress()
    return replace(source, progress=replace(source.progress, **{name: getattr(new, name) for name in _OF_A_DAY}))


def _tell(source: Source, saved: Encoding, dataset: Dataset, is_same: bool, is_named: bool) -> None:
    """One line on new rows and new values."""
    assert dataset.encoding is not None
    grown = _grown(saved, dataset.encoding)
    if is_same and not grown:
        return
    known = sum(feature["num_ids"] for feature in saved.manifest["features"])
    by_name = ", ".join(f"{name} +{count:,}" for name, count in list(grown.items())[:8])
    more = f" and {len(grown) - 8} more" if len(grown) > 8 else ""
    values = f"{sum(grown.values()):,} new ids behind {known:,} known ones ({by_name}{more})" if grown else "no new ids"
    where = f"begin at row 0, after step {source.step:,}" if is_named else "are other ones than those of the checkpoint"
    logger.info(
        "new rows: %s training rows %s; %s; known values keep their rows, dense columns their transforms",
        f"{dataset.num_rows('train'):,}", where, values,
    )  # fmt: skip


def grows(dataset: Dataset) -> bool:
    """Tables may have more rows than in the checkpoint: what is known of the vocabularies says that ids stay."""
    return dataset.encoding is not None and dataset.encoding.encodes and not dataset.encoding.is_hashed
