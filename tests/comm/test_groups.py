"""Texts between ranks, and how groups are made without gloo's own lines."""

from __future__ import annotations

import os
import pickle
from typing import Any

import pytest
import torch.distributed as dist

from recpipe.comm import Groups
from recpipe.comm.connecting import without_lines_of_gloo
from tests.ranks import run_ranks

STRANGE = "prix, €\udc80\x00"


def exchange(rank: int, world: int) -> Any:
    """Texts of all ranks and of rank 0, with pickle out of reach."""
    groups = Groups.create()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a pickle is read")

    before = pickle.loads, pickle.Unpickler
    pickle.loads = pickle.Unpickler = refuse  # type: ignore[assignment,misc]
    try:
        gathered = groups.gather_texts([STRANGE] * rank)
        return gathered, groups.broadcast_text(STRANGE if rank == 0 else "nobody asks"), groups.broadcast_text("")
    finally:
        pickle.loads, pickle.Unpickler = before  # type: ignore[misc]


def test_texts_cross_ranks_without_a_pickle():
    """Case 121: what one rank tells another is JSON."""
    for gathered, told, empty in run_ranks(exchange, 2):
        assert (gathered, told, empty) == ([[], [STRANGE]], STRANGE, "")


def test_alone():
    groups = Groups(0, 1)
    assert (groups.gather_texts(["a"]), groups.broadcast_text("b")) == ([["a"]], "b")


@pytest.mark.parametrize("fails", [False, True])
def test_gloo_is_not_heard_while_ranks_connect_and_all_else_is(capfd, fails):
    """Case 173: four raw lines stood before the one message."""
    try:
        with without_lines_of_gloo():
            os.write(2, b"[/pytorch/third_party/gloo/gloo/transport/tcp/debug_logger.cc:9] ERROR failed to connect\n")
            os.write(2, b"terminate called\n")
            if fails:
                raise RuntimeError("Gloo connectFullMesh failed")
    except RuntimeError:
        assert fails
    os.write(2, b"[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:1] later\n")
    heard = capfd.readouterr().err
    assert heard == "terminate called\n[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:1] later\n"


def test_without_a_stderr(monkeypatch):
    def closed(_: int) -> int:
        raise OSError("closed")

    monkeypatch.setattr(os, "dup", closed)
    with without_lines_of_gloo():
        assert not dist.is_initialized()
