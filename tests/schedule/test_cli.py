"""``recpipe simulate`` below the command table: every configuration file composed and run, and what is written."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from recpipe.cli import simulate as command
from recpipe.errors import ConfigError, ScheduleError
from recpipe.schedule.profile import Cut, MeshProfile, Profile
from recpipe.schedule.text import parse_program

CONF = Path(__file__).parents[2] / "conf"
SCHEDULES = sorted(path.stem for path in (CONF / "schedule").glob("*.yaml"))
COSTS = sorted(path.stem for path in (CONF / "cost").glob("*.yaml"))


def config(*overrides: str) -> DictConfig:
    """The root file under the command's schema."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loose = [f"++{one}" if "." in one.split("=")[0] else one for one in overrides]
        made = OmegaConf.merge(OmegaConf.structured(command.SCHEMA), compose(command.CONFIG, loose))
    assert isinstance(made, DictConfig)
    return made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_profile(file: Path) -> None:
    """Of a tower in 1 to 12 stages, all alike."""
    cuts = {}
    for n in range(1, 13):
        lines = {f"{op}{stage}": (0.1, 0.01) for op in ("F", "B", "I", "W", "OPT") for stage in range(n)}
        cuts[str(n)] = Cut(lines, [8.0] * (n - 1), [100.0] * n)
    Profile("dlrm", 4, 64, cuts, {"4": MeshProfile({}, 0.0, [1.0], 0.0)}, 0.1, 10.0).save(file)


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_file(schedule: str, cost: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["schedule.microbatches=4"] if schedule == "cyclic" else []
    if cost == "profiled":
        write_profile(folder / "profile.json")
    assert command.main(config(f"schedule={schedule}", f"cost={cost}", *sizes)) == 0
    out = capsys.readouterr().out
    assert "rank 0: F0.0" in out and "bubble" in out and "wrote program.txt" in out
    program = parse_program((folder / "program.txt").read_text())
    assert schedule in ("auto", program.name)


def test_the_command_of_the_readme(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """schedule=zb_h1 mesh.stages=4 schedule.microbatches=8 cost=unit."""
    assert command.main(config("schedule=zb_h1", "mesh.stages=4", "schedule.microbatches=8", "cost=unit", "width=120")) == 0
    found = json.loads((folder / "simulation.json").read_text())
    assert found["makespan"] == 27
    assert found["weight_copies"] == 1
    assert [rank["window"] for rank in found["ranks"]] == [3, 2, 1, 0]
    assert [rank["flush"] for rank in found["ranks"]] == [3] * 4
    assert [rank["peak_activations"] for rank in found["ranks"]] == [4] * 4
    assert found["bytes_per_link"]["0>1 activation"] == 8
    out = capsys.readouterr().out
    assert "rank 3 ·········F0-I0-F1-I1-F2-I2-F3-I3-W0-F4" in out
    assert "bubble 11.1%, exact, 1 weight copies" in out


def test_trace_and_picture(folder: Path) -> None:
    """The trace has what Perfetto needs; the picture is well formed and has a box for every action that takes time."""
    settings = ["schedule=chimera", "cost=cluster", "schedule.embedding=step", "cost.microseconds=1000"]
    assert command.main(config(*settings)) == 0
    trace = json.loads((folder / "timeline.json").read_text())
    spans = [one for one in trace["traceEvents"] if one["ph"] == "X"]
    program = parse_program((folder / "program.txt").read_text())
    assert len(spans) == program.num_actions
    assert all({"name", "pid", "tid", "ts", "dur"} <= one.keys() for one in spans)
    makespan = json.loads((folder / "simulation.json").read_text())["makespan"]
    assert max(one["ts"] + one["dur"] for one in spans) == pytest.approx(makespan * 1000)
    root = ElementTree.parse(folder / "gantt.svg").getroot()
    boxes = root.findall(".//{*}rect/{*}title")
    assert len(boxes) == sum(one["dur"] > 0 for one in spans)


def test_costs_one_by_one(folder: Path) -> None:
    settings = ["cost.forward=1", "cost.input=0.5", "cost.weight=0.5", "cost.delay=[3]", "cost.far.alpha=0.5"]
    assert command.main(config("schedule=gpipe", "mesh.stages=2", "schedule.microbatches=4", *settings)) == 0
    found = json.loads((folder / "simulation.json").read_text())
    assert found["makespan"] == 10 + 2 * 3.5
    assert found["exchange"]["SA"] == {"total": 14.0, "hidden": 6.0, "exposed": 8.0}


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (["schedule=chimera", "schedule.microbatches=7"], ScheduleError, "schedule.microbatches=6 or 8 would do"),
        (["schedule=dualpipe", "schedule.microbatches=4"], ScheduleError, "schedule.microbatches=8 or 10 would do"),
        (["schedule=cyclic"], ScheduleError, "schedule.microbatches=4 or mesh.stages=8 would do"),
        (["schedule=dualpipe", "mesh.stages=3"], ScheduleError, "mesh.stages=4 would do"),
        (["schedule.name=zbh1"], ScheduleError, "no schedule 'zbh1'. Known: auto, gpipe, 1f1b"),
        (["schedule.embedding=later"], ScheduleError, "not one of none, step, route, ahead, spread"),
        (["mesh.stages=0"], ScheduleError, "mesh.stages=0: must be at least 1"),
        (["schedule.microbatches=0"], ScheduleError, "microbatches must be at least 1"),
        (["cost.forward=-1"], ConfigError, "cost.forward=-1.0: must be finite and not negative"),
        (["cost.host=gpu"], ConfigError, "write async .CUDA. or sync"),
        (["schedule.memory=2"], ScheduleError, "V11 on rank 0, F0.0 and F0.7: holds 4 activations, 2 allowed"),
    ],
)
def test_what_a_user_is_told(settings: list[str], error: type[Exception], words: str, folder: Path) -> None:
    with pytest.raises(error, match=words):
        command.main(config(*settings))
    assert not list(folder.iterdir())
