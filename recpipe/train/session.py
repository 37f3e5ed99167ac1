"""What each worker process runs: training, evaluation, verification; from a configuration to files and an exit code."""

from __future__ import annotations

import json
import logging
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from recpipe.comm import Groups
from recpipe.data import Dataset
from recpipe.errors import CheckpointError, ConfigError, DataError
from recpipe.planner.plan import save_plan
from recpipe.train import checkpoint
from recpipe.train.checkpoint_saver import check_settings
from recpipe.train.config_text import from_yaml, to_yaml
from recpipe.train.evaluate import score_split
from recpipe.train.failures import traces_in
from recpipe.train.interrupt import FORWARDED, Interruption
from recpipe.train.launch_local import note_run_dir, restarted_run
from recpipe.train.local_worker import worker_folder
from recpipe.train.loop import TrainingLoop
from recpipe.train.metrics import evaluate
from recpipe.train.new_rows import continued, grows, opening
from recpipe.train.planned import PLANNED, apply_plan_setting
from recpipe.train.profile import measure_profile
from recpipe.train.ranks import watch
from recpipe.train.remarks import remarks
from recpipe.train.report import Reporter, one_line
from recpipe.train.resume import Source, as_trained, changed_settings, check_data, find_source, place_run
from recpipe.train.rows import OF_THE_RUN, Chosen, Wanted, given_rows, held_out_rows, shared_directory
from recpipe.train.run_dir import hold, make_run_dir
from recpipe.train.setup import Job, build_job, build_scorer
from recpipe.train.state import check_schema, read_schema, weights
from recpipe.train.summary import placement_line, plan_json, training_summary
from recpipe.train.taken import take_places
from recpipe.train.trace import start_trace, write_trace
from recpipe.train.trainer import Scorer
from recpipe.train.verify import DEFAULT_TOLERANCE, compare, largest, told

logger = logging.getLogger(__name__)


def run_train(cfg: Any, groups: Groups) -> int:
    """Trains, evaluates, writes the run directory. Collective over all workers; gives the exit code."""
    started = time.perf_counter()
    died = restarted_run()
    if died is not None:
        cfg.run.dir, cfg.resume = str(died), "auto"
    check_settings(cfg)
    source = find_source(cfg, groups)
    step = place_run(cfg, source)
    plan = apply_plan_setting(cfg, groups)
    job = build_job(cfg, groups, opening(source))
    source = continued(source, cfg, job.dataset, groups)
    if source is not None:
        check_data(source, job.dataset, cfg.resume_allow_grow or grows(job.dataset))
    folder = make_run_dir(cfg, "train", groups, step)
    if plan is not None:
        save_plan(plan, folder / PLANNED)
    note_run_dir(folder)
    # Our own launcher collects traces, and passes signals on.
    launched = worker_folder() is not None
    traces = nullcontext() if launched else traces_in(folder, groups.rank)
    with traces, hold(folder, groups.rank), Interruption(groups.rank == 0, (FORWARDED,) if launched else None) as interruption:
        text = to_yaml(as_trained(cfg, source, job.mesh.replicas))
        loop = TrainingLoop(job, folder, text, source, interruption)
        with watch(cfg, groups, lambda: job.trainer.step):
            _train(loop, started)
            groups.barrier()
    return interruption.exit_code if loop.interrupted else 0


def _train(loop: TrainingLoop, started: float) -> None:
    """Everything between the first step and the summary."""
    job, folder, cfg = loop.job, loop.folder, loop.job.cfg
    main = job.groups.rank == 0
    if main:
        (folder / "config.yaml").write_text(loop.config_text)
        (folder / "plan.json").write_text(plan_json(job.tables.layouts, job.groups.world))
    _introduce(job, loop)
    recorder = start_trace(job, loop.total_steps)
    with Reporter(folder if main else None, loop.total_steps, cfg.log.progress, cfg.log.tensorboard) as reporter:
        loop.run(reporter)
        if loop.interrupted:
            _say_goodbye(loop)
            return
        split = "test" if job.dataset.num_rows("test") else "valid"
        report = loop.last_test(split, reporter)
        if loop.interrupted:
            _say_goodbye(loop)
            return
    saved = loop.save("final") and loop.finish_saving() if cfg.save_checkpoint else None
    summary = training_summary(loop, split, report, time.perf_counter() - started)
    if recorder is not None:
        summary["trace"] = write_trace(recorder, job, folder)
    if main:
        # Whole or not there: its being there says that the run has ended.
        (folder / ".summary.json").write_text(json.dumps(summary, indent=2))
        (folder / ".summary.json").replace(folder / "summary.json")
        _conclude(job, summary, folder, loop.checkpoints / "final" if saved else None)
    if saved is False:
        raise CheckpointError(
            f"{loop.checkpoints / 'final'}: the end of the run could not be saved; see the warning above"
        )


def _say_goodbye(loop: TrainingLoop) -> None:
    step, folder = loop.job.trainer.step, loop.folder
    if (loop.checkpoints / f"step-{step}").is_dir():
        place = f"in the {'last test' if loop.progress.left == 'test' else 'validation'} " if loop.progress.left else ""
        said = "stopped %safter step %d, with a checkpoint; go on with: recpipe train resume=%s"
        logger.info(said, place, step, folder)
    else:
        logger.warning(
            "WARNING: stopped after step %d WITHOUT a checkpoint of it; older ones are in %s", step, loop.checkpoints
        )


def run_eval(cfg: Any, groups: Groups) -> int:
    """Scores a checkpoint at this world size, whatever the one it was saved at."""
    folder = checkpoint.choose(Path(cfg.checkpoint), groups)
    trained = from_yaml(checkpoint.read_text(folder, "config.yaml"), folder / "config.yaml")
    take_places(trained, OF_THE_RUN if cfg.data_path else (), folder)
    trained.tables, trained.exchange.kind, trained.launch = cfg.tables, "window", cfg.launch
    with shared_directory(cfg.output, groups) as work:
        rows = _rows_to_evaluate(cfg, folder, trained, work, groups)
        check_schema(read_schema(folder), rows.dataset.schema)
        if not rows.dataset.num_rows(rows.split):
            raise ConfigError(f"split={rows.split}: {rows.dataset.source} has no such rows")
        scorer = _load_scorer(trained, rows.dataset, folder, groups)
        size = cfg.test_batch_size or trained.test_batch_size or trained.batch_size
        with watch(cfg, groups, lambda: scorer.scored):
            logits, labels = score_split(scorer, rows.dataset, rows.split, groups, size, cfg.limit_test_batches)
    if labels.isnan().any():
        raise DataError(f"{rows.said}: rows without a label cannot be evaluated; recpipe score gives their scores")
    report, remarks = evaluate(logits, labels)
    if groups.rank == 0:
        logger.info("%s: %s", rows.said, one_line(report))
        for remark in remarks:
            logger.warning(remark)
        if cfg.output:
            scores = torch.sigmoid(logits).tolist()
            Path(cfg.output).write_text("".join(f"{score:.9g}\n" for score in scores))
            logger.info("wrote %d scores to %s", len(scores), cfg.output)
        place = {"split": rows.split, "checkpoint": str(folder), "world_size": groups.world, "data": rows.said}
        logger.info(json.dumps({**place, **report, "unseen_share": rows.unseen}))
    return 0


def _rows_to_evaluate(cfg: Any, folder: Path, trained: Any, work: Path, groups: Groups) -> Chosen:
    """Those of a path, or those that the run held out."""
    if not cfg.data_path:
        return held_out_rows(folder, trained, cfg.split, groups)
    share = float(trained.data.get("max_bad_share", 0.0))
    return given_rows(folder, trained, Wanted(cfg.data_path, cfg.split, max_bad_share=share), work, groups)


def run_profile(cfg: Any, groups: Groups) -> int:
    """Measures the configured model on the ranks there are; rank 0 writes the file."""
    profile = measure_profile(cfg, groups)
    if groups.rank == 0:
        profile.save(Path(cfg.output))
        use = f"recpipe simulate mesh.stages={groups.world} cost=profiled cost.file={cfg.output}"
        logger.info("wrote %s; use it with: %s", cfg.output, use)
    return 0


def run_verify(cfg: Any, groups: Groups) -> int:
    """This configuration beside the single-process reference; exit code 1 beyond the tolerance."""
    apply_plan_setting(cfg, groups)
    job = build_job(cfg, groups, with_reference=True)
    for remark in remarks(cfg, job.program.name, job.tables.layouts, job.dataset.num_rows("valid")):
        logger.info(remark)
    tolerance = DEFAULT_TOLERANCE[cfg.dtype] if cfg.tolerance is None else cfg.tolerance
    logger.info("verifying %d steps of %s on %d ranks against one process ...", cfg.steps, cfg.model.name, groups.world)
    with watch(cfg, groups, lambda: job.trainer.step):
        found = compare(job, cfg.steps, tolerance)
    passed = told(found, tolerance, logger.info if groups.rank == 0 else lambda _: None)
    folder = make_run_dir(cfg, "verify", groups)
    if groups.rank == 0:
        result = {"passed": passed, "tolerance": tolerance, "steps": cfg.steps, "world_size": groups.world}
        beyond = {f"{one.kind} {one.where}": one.value for one in found if not one.value <= one.bound(tolerance)}
        result |= {"dtype": cfg.dtype, "differences": largest(found), "beyond": beyond}
        (folder / "verify.json").write_text(json.dumps(result, indent=2))
        logger.info("%s (tolerance %g); wrote %s", "same" if passed else "DIFFERENT", tolerance, folder / "verify.json")
    return 0 if passed else 1


def _load_scorer(trained: Any, dataset: Dataset, folder: Path, groups: Groups) -> Scorer:
    scorer = build_scorer(trained, dataset, groups)
    checkpoint.load(folder, weights(scorer), groups)
    return scorer


def _introduce(job: Job, loop: TrainingLoop) -> None:
    """Says what is about to be trained, on what, and how it is spread."""
    cfg, data = job.cfg, job.dataset
    if job.groups.rank:
        return
    if loop.source is not None:
        _tell_source(loop.source, cfg)
    logger.info("data: %s", data.source)
    logger.info("rows: %s", ", ".join(f"{split} {data.num_rows(split):,}" for split in ("train", "valid", "test")))
    for warning in data.warnings:
        logger.warning("WARNING: %s", warning)
    dense = sum(p.numel() for p in job.model.parameters())
    rows = sum(spec.num_elements for spec in job.model.tables)
    num_tables = len(job.model.tables)
    logger.info("model: %s, %s dense weights, %s in %d tables", job.model.name, f"{dense:,}", f"{rows:,}", num_tables)
    mesh = job.mesh
    logger.info("mesh: %d ranks = %d replicas x %d stages", job.groups.world, mesh.replicas, mesh.stages)
    logger.info(placement_line(job.tables.layouts))
    for remark in remarks(cfg, job.program.name, job.tables.layouts, data.num_rows("valid")):
        logger.info(remark)
    rows, steps = loop.feed.global_batch, replace(loop.feed, start_row=0).num_steps
    share = -(-rows // mesh.replicas)
    logger.info("batch: %d a replica, %d global; %d steps an epoch, %d epochs", share, rows, steps, cfg.epochs)
    rest = loop.feed.num_rows % loop.feed.global_batch
    if rest and not cfg.drop_last_training_batch and cfg.limit_train_batches is None:
        logger.info("the last step of an epoch has %d rows", rest)
    elif loop.feed.stop_row < loop.feed.num_rows:
        logger.info("%d rows of an epoch are left out, as asked", loop.feed.num_rows - loop.feed.stop_row)
    if not steps:
        logger.warning("WARNING: an epoch has no step, NOTHING IS TRAINED: it has fewer rows than a batch of %d", rows)


def _tell_source(source: Source, cfg: Any) -> None:
    """Where the run goes on, and what is no longer as it was."""
    place = source.progress
    logger.info(
        "resuming from %s: step %d, epoch %d, row %s", source.folder, source.step, place.epoch, f"{place.row:,}"
    )
    changes = changed_settings(source, cfg)
    if changes:
        logger.warning("WARNING: changed since that checkpoint: %s", "; ".join(changes))


def _conclude(job: Job, summary: dict[str, Any], folder: Path, saved: Path | None) -> None:
    """The result, and where it lies."""
    if job.dataset.teacher and summary["split"] == "test":
        teacher = job.dataset.teacher
        logger.info(
            "the teacher that made these rows: auc %.4f  logloss %.4f (the best any model can reach)",
            teacher["auc"], teacher["logloss"],
        )  # fmt: skip
    logger.info("%s rows/s in training, %.1f s in all", f"{summary['rows_per_s']:,.0f}", summary["seconds"])
    logger.info("run directory: %s", folder)
    if saved is not None:
        logger.info("score it again with: recpipe eval checkpoint=%s", saved)
