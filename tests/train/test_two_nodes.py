"""A rank dies on one of two nodes: both go on from the checkpoint (case 171), over the interface that was found (case 172)."""

from __future__ import annotations

import os
import sys

import pytest

from recpipe.bench.links import Namespaces
from recpipe.errors import ConfigError
from tests.cli.test_launch import ROOT, environment
from tests.train.faults import Fault, arguments
from tests.train.test_failures import SETTINGS
from tools.two_nodes import Nodes

WAYS = {
    "static": ["--node-rank={node}", "--master-addr={master}", "--master-port=29500"],
    "c10d": ["--rdzv-backend=c10d", "--rdzv-endpoint={master}:29500", "--local-addr={address}", "--rdzv-conf=is_host={first}"],
}


@pytest.fixture
def nodes():
    network = Nodes()
    try:
        network.__enter__()
    except ConfigError as error:
        pytest.skip(f"no emulated nodes here: {error}")
    yield network
    network.__exit__(None, None, None)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_rank_dies_on_one_of_two_nodes(way, nodes, tmp_path):
    kill = Fault(1, "backward", 5, mark=str(tmp_path / "killed"))
    settings = {**SETTINGS, "run__dir": str(tmp_path / "run"), "resume": "auto"}
    torchrun = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=1", *WAYS[way]]
    variables = {**environment(TMPDIR=str(tmp_path))}
    variables.pop("GLOO_SOCKET_IFNAME", None)
    with (tmp_path / "log").open("w") as log:
        nodes.start([sys.executable, *torchrun, *arguments(2, settings, kill)], cwd=ROOT, env=variables, stdout=log, stderr=log)
        codes = [process.wait() for process in nodes.processes]
    text = (tmp_path / "log").read_text()
    assert codes == [0, 0], text
    assert (tmp_path / "killed").exists() and text.count("resuming from") == 1, text
    assert (tmp_path / "run" / "summary.json").exists()


def test_nothing_is_left_of_the_nodes(tmp_path):
    network = Namespaces(2)
    try:
        with Nodes() as nodes:
            nodes.start([sys.executable, "-c", "import time; time.sleep(600)"])
            left = nodes.processes
    except ConfigError as error:
        pytest.skip(f"no emulated nodes here: {error}")
    assert [process.poll() is not None for process in left] == [True, True]
    assert not [name for rank in range(2) if os.path.exists(f"/run/netns/{(name := network.prefix(rank)[-1])}")]
