"""Trials of ``recpipe doctor``, run as a program of its own: each prints a finding as a line of JSON."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict

from recpipe.cli.doctor_checks import INSTALL, Finding, has_nvidia


def main() -> int:
    """Runs the trials in order; one that raises is a finding, not the end."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    for name, trial in TRIALS:
        try:
            findings = list(trial())
        except Exception as error:
            findings = [Finding("fail", f"{name}: {_reason(error)}", INSTALL)]
        for finding in findings:
            print(json.dumps(asdict(finding)), flush=True)
    return 0


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def _torch() -> Iterator[Finding]:
    import torch
    import torch.distributed as dist

    yield Finding("ok", f"torch imports; built for {'CUDA ' + torch.version.cuda if torch.version.cuda else 'CPU'}")
    gloo, nccl = dist.is_gloo_available(), dist.is_nccl_available()
    yield Finding("ok" if gloo else "fail", f"backend gloo: {'yes' if gloo else 'no'}", "" if gloo else INSTALL)
    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    text = f"backend nccl: {'yes' if nccl else 'no'}; CUDA devices: {cuda or 'none'}"
    if has_nvidia() and not cuda:
        yield Finding("note", f"{text}, though the machine has an NVIDIA driver", f"RECPIPE_DEVICE=cuda {INSTALL}")
    else:
        yield Finding("ok", text)


def _lookup() -> Iterator[Finding]:
    import torch
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(5, 4, EmbeddingLocation.HOST, ComputeDevice.CPU)], optimizer=EmbOptimType.EXACT_SGD, learning_rate=1.0
    )
    rows = tables.split_embedding_weights()[0]
    rows.copy_(torch.arange(20.0).view(5, 4))
    before = rows.clone()
    pooled = tables(torch.tensor([1, 3, 3]), torch.tensor([0, 2, 3]))
    right = torch.equal(pooled, torch.stack([before[1] + before[3], before[3]]))
    pooled.sum().backward()
    right = right and torch.equal(before - rows, torch.tensor([0.0, 1, 0, 2, 0]).view(5, 1).expand(5, 4))
    yield Finding("ok" if right else "fail", "kernel library: lookup and update of rows", "" if right else INSTALL)


def _torchrec() -> Iterator[Finding]:
    import torchrec  # noqa: F401 - importing is the trial

    yield Finding("ok", "torchrec imports")


def _group() -> Iterator[Finding]:
    # As a local run does, whatever interface the user has named for others.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    value = torch.ones(1)
    dist.all_reduce(value)
    dist.destroy_process_group()
    yield Finding("ok", "gloo: a group of one process")


TRIALS: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
    ("torch", _torch),
    ("kernel library", _lookup),
    ("torchrec", _torchrec),
    ("gloo", _group),
)


if __name__ == "__main__":
    sys.exit(main())
