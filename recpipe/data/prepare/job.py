"""One preparation from beginning to end: resumable, and whole or absent under its final name."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recpipe.data.encoding import Encoding
from recpipe.data.paths import writing
from recpipe.data.prepare.assign import SPLITS, TRAIN, Splitter, make_splitter
from recpipe.data.prepare.disk import check_space
from recpipe.data.prepare.encode import ShardWriter
from recpipe.data.prepare.formats import ENDINGS, make_formats, make_readers, with_labels
from recpipe.data.prepare.given import check_columns_of, scales_of
from recpipe.data.prepare.inputs import MANIFEST, Source, find_sources
from recpipe.data.prepare.layout import Layout
from recpipe.data.prepare.manifest import write_manifest
from recpipe.data.prepare.meter import Meter, Report, to_log
from recpipe.data.prepare.moments import Moments
from recpipe.data.prepare.phases import count_features, measure_dense, parse_sources
from recpipe.data.prepare.pool import run_all
from recpipe.data.prepare.quarantine import write_quarantine
from recpipe.data.prepare.ranking import FeatureCounts
from recpipe.data.prepare.raw import Format
from recpipe.data.prepare.remarks import Prepared
from recpipe.data.prepare.scale import scale_of
from recpipe.data.prepare.settings import check_settings, chunk_size, digest, memory_limit, num_threads
from recpipe.data.prepare.spread import ColumnSpread
from recpipe.data.prepare.transform import check_columns
from recpipe.data.prepare.vocabulary import Encoder, HashEncoder, load_encoder
from recpipe.errors import ConfigError, DataError
from recpipe.untrusted import Source as StrangersFile

Log = Callable[[str], None]
WORK = "work"
_CURE = "remove the directory, or choose another data.out"


def prepare(
    config: Any, log: Log, report: Report | None = None, known: Encoding | None = None, say_files: bool = False
) -> Path:
    """The prepared directory of these settings; written now unless it is there.

    Args:
        config: attributes of `CriteoData` or `TableData`.
        log: takes one line of progress.
        report: takes the progress of each phase; without it, lines of the log.
        known: an encoding to go on with: its values keep their ids, new ones come behind them; its dense parameters stay.
        say_files: say which files are left out or held out by their names even where nothing is left to do.

    Raises:
        ConfigError: settings that do not fit each other.
        DataError: files that are missing, damaged or not in the format; too many bad lines; no room on disk.
    """
    check_settings(config)
    remarks: list[str] = []
    sources = _sources(config, remarks.append)
    name = digest(config, sources, "" if known is None else known.digest)
    out = Path(config.out).expanduser() if config.out else Path(config.cache_dir) / f"{config.name}-{name}"
    ready = _is_ready(out, name)
    for line in remarks if say_files or not ready else []:
        log(line)
    if ready:
        return out
    with _work_directory(out, name) as partial:
        if not _is_ready(out, name):
            try:
                _run(config, sources, name, partial, log, report or to_log(log), known)
            except (KeyboardInterrupt, SystemExit):
                log(f"stopped; what is done lies in {partial}, and the same command continues from it")
                raise
            _publish(partial, out)
            log(f"prepared {out}")
    return out


def result_name(config: Any, begun: str = "") -> str:
    """The digest that the manifest of these settings' result has.

    Args:
        begun: digest of the encoding that it goes on with; empty: none.
    """
    check_settings(config)
    return digest(config, _sources(config, lambda line: None), begun)


def _sources(config: Any, say: Log) -> list[Source]:
    """The input files."""
    paths = (config.path, config.valid_path, config.test_path)
    return with_labels(config, find_sources(*paths, ENDINGS[config.name], f"data={config.name}", say), say)


def _is_ready(out: Path, name: str) -> bool:
    """Whether the result is there; an error where something else is."""
    if not out.exists():
        return False
    if (out / MANIFEST).is_file():
        found = StrangersFile(out / MANIFEST, DataError, _CURE, large=True, non_finite=True).json()["digest"].text()
        if found == name:
            return True
        raise DataError(f"{out} holds other files or settings ({found}, not {name}); choose another data.out")
    if any(out.iterdir()):
        raise DataError(f"{out} is not empty and not a prepared directory; choose another data.out")
    return False


@contextmanager
def _work_directory(out: Path, name: str) -> Iterator[Path]:
    """The unfinished directory beside `out`, for this process alone."""
    partial = out.with_name(out.name + ".partial")
    with writing(partial):
        partial.mkdir(parents=True, exist_ok=True)
        with (out.with_name(out.name + ".lock")).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            partial.mkdir(parents=True, exist_ok=True)
            _claim(partial, name)
            yield partial


def _claim(partial: Path, name: str) -> None:
    """Continue only what was begun with the same settings and files."""
    mark = partial / "job.json"
    if mark.exists() and StrangersFile(mark, DataError, _CURE).json()["digest"].text() != name:
        raise DataError(f"{partial} is unfinished work of other settings; remove it or choose another data.out")


def _chunk_size(partial: Path, name: str, config: Any) -> int:
    """Bytes of a chunk; the work already done decides when there is some."""
    mark = partial / "job.json"
    if not mark.exists():
        size = chunk_size(memory_limit(config.memory_limit), num_threads(config))
        mark.with_suffix(".new").write_text(json.dumps({"digest": name, "chunk_size": size}))
        os.replace(mark.with_suffix(".new"), mark)
    return StrangersFile(mark, DataError, _CURE).json()["chunk_size"].integer(1)


def _run(
    config: Any, sources: list[Source], name: str, partial: Path, log: Log, report: Report, known: Encoding | None
) -> None:
    """All phases."""
    formats = make_formats(config, sources, say=log)
    check_columns("transforms", config.transforms, formats[0].dense, "dense")
    check_columns("frequency_thresholds", config.frequency_thresholds, formats[0].categorical, "categorical")
    if known is not None:
        check_columns_of(known, formats[0])
    splitter = _splitter(config, sources)
    check_space(partial, sources, formats[0])
    work, size, threads = partial / WORK, _chunk_size(partial, name, config), num_threads(config)
    log(f"preparing {len(sources)} file(s) with {threads} thread(s)")
    with Meter("parse", sum(source.size for source in sources), report) as meter:
        readers = make_readers(config, sources, formats, size, meter.add)
        parsed = parse_sources(readers, formats, work / "raw", threads, meter)
    bad = write_quarantine(partial, sources, formats, parsed.units, config.max_bad_share, log)
    layout = Layout.of(sources, parsed.units, splitter)
    _check_rows(layout)
    counts = _count(config, layout, formats[0], partial, report, known)
    spreads = _measure(config, layout, formats[0])
    with Meter("write", sum(unit.rows for unit in parsed.units), report) as meter:
        writer = _writer(config, layout, formats[0], partial, counts, spreads, meter, known)
        records = run_all(lambda shard: writer.write(*shard), writer.shards(), threads)
    said = Prepared(config, layout, formats[0], writer, spreads, counts, records).remarks()
    write_manifest(
        config, name, partial, layout, formats[0], parsed.checksums, counts, spreads, writer, records, bad, said, known
    )
    log(_summary(layout, bad))


def _splitter(config: Any, sources: list[Source]) -> Splitter:
    """How rows are held out."""
    num_main = sum(source.role == "main" for source in sources)
    given = bool(config.valid_path or config.test_path)
    kind = getattr(config, "split", "fraction")
    valid, test = config.valid_fraction, config.test_fraction
    named = {source.role for source in sources if source.by_name}
    if named and not given:
        if kind == "days":
            raise ConfigError("data.split=days holds out the last day, but names of files hold out others; give a pattern")
        # A split that has files of its own takes no rows from the others.
        valid, test = (
            (0.0 if role in named else 0.1) if share == -1 else share
            for role, share in (("valid", valid), ("test", test))
        )
    return make_splitter(kind, valid, test, given, config.split_seed, num_main)


def _check_rows(layout: Layout) -> None:
    """There must be something to train on."""
    if layout.num_rows(TRAIN) == 0:
        files = ", ".join(str(source.path) for source in layout.sources if source.role == "main")
        raise DataError(f"no training rows in {files}")


def _count(
    config: Any, layout: Layout, fmt: Format, partial: Path, report: Report, known: Encoding | None
) -> list[FeatureCounts] | None:
    """Vocabularies by frequency; None where ids are hashed."""
    if config.vocabulary == "hash":
        return None
    columns = [1 + len(fmt.dense) + number for number in range(len(fmt.categorical))]
    budget = memory_limit(config.memory_limit) // 3
    directory = partial / "vocabulary"
    total = len(columns) * sum(unit.rows for unit in layout.units)
    thresholds = [config.frequency_thresholds.get(name, config.frequency_threshold) for name in fmt.categorical]
    largest, threads = config.max_ids, num_threads(config)
    with Meter("count", total, report) as meter:
        return count_features(layout, columns, directory, thresholds, largest, budget, threads, meter, known)


def _writer(
    config: Any,
    layout: Layout,
    fmt: Format,
    partial: Path,
    counts: list[FeatureCounts] | None,
    spreads: list[ColumnSpread],
    meter: Meter,
    known: Encoding | None,
) -> ShardWriter:
    """The writer of output shards."""
    done = partial / WORK / "shards"
    done.mkdir(parents=True, exist_ok=True)
    asked = [config.transforms.get(name, config.dense_transform) for name in fmt.dense]
    scales = [scale_of(one, config.dense_missing, spread) for one, spread in zip(asked, spreads, strict=True)]
    if known is not None:
        scales = scales_of(known.manifest)
    encoders = _encoders(config, fmt, partial, counts)
    multi = [name in fmt.multi_valued for name in fmt.categorical]
    return ShardWriter(partial, done, layout, scales, encoders, any(multi), fmt.weighted, config.rows_per_shard, meter)


def _measure(config: Any, layout: Layout, fmt: Format) -> list[ColumnSpread]:
    """How the values of each dense column lie."""
    spreads = []
    for name in fmt.dense:
        moments = config.transforms.get(name, config.dense_transform) in ("auto", "standardize")
        spreads.append(ColumnSpread(moments=Moments() if moments else None, fill=config.dense_missing))
    measure_dense(layout, spreads, num_threads(config))
    return spreads


def _encoders(config: Any, fmt: Format, partial: Path, counts: list[FeatureCounts] | None) -> list[Encoder]:
    """From keys to ids, one a categorical column."""
    if counts is None:
        return [HashEncoder(config.hash_size, number) for number in range(len(fmt.categorical))]
    mapped = sum(count.num_ids for count in counts) * 12 > memory_limit(config.memory_limit) // 4
    directory = partial / "vocabulary"
    return [load_encoder(directory, f"{number:03d}", count.num_ids, mapped) for number, count in enumerate(counts)]


def _publish(partial: Path, out: Path) -> None:
    """Remove the scaffolding and give the directory its name."""
    shutil.rmtree(partial / WORK)
    (partial / "job.json").unlink()
    for leftover in (partial / "vocabulary").glob("*.json"):
        leftover.unlink()
    if out.exists():
        out.rmdir()
    os.replace(partial, out)
    out.with_name(out.name + ".lock").unlink(missing_ok=True)


def _summary(layout: Layout, bad: int) -> str:
    """Rows by split."""
    rows = ", ".join(f"{layout.num_rows(number):,} {split}" for number, split in enumerate(SPLITS))
    return f"rows: {rows}; {bad:,} line(s) in quarantine"
