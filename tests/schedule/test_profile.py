"""Profiles: lines, curves and files; what they give for a program."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from recpipe.errors import ConfigError
from recpipe.schedule.assemble import assemble
from recpipe.schedule.cost import Durations
from recpipe.schedule.families.base import Request
from recpipe.schedule.ir import Action, Op
from recpipe.schedule.passes.embedding import Exchange
from recpipe.schedule.profile import Cut, MeshProfile, Profile, load_profile, profiled_cost
from recpipe.schedule.simulate import simulate

CUT = Cut(
    {"F0": (1.0, 0.01), "F1": (0.5, 0.02), "B0": (2.0, 0.03), "B1": (1.0, 0.04), "OPT0": (3.0, 0.0), "OPT1": (4.0, 0.0)},
    [40.0],
    [1000.0, 3000.0],
)
TABLES = {"EL0": (0.5, 0.0), "EL1": (0.25, 0.0), "EU0": (0.7, 0.0), "EU1": (0.9, 0.0), "EG0": (0.1, 0.001), "ED0": (6.0, 0.0)}
PROFILE = Profile("dlrm", 2, 800, {"2": CUT}, {"2": MeshProfile(TABLES, 6400.0, [0.5, 0.2, 0.2, 0.1], 0.25)}, 0.3, 100.0)


def program(family="1f1b", microbatches=4, stages=2):
    return assemble(family, Request(stages, microbatches), Exchange("ahead"), 3)


def test_durations_follow_lines_and_curves():
    made = program()
    durations = Durations(made, profiled_cost(PROFILE, made))
    assert durations.of(Action(Op.F, 1, 2)) == pytest.approx(0.5 + 200 * 0.02)
    assert durations.of(Action(Op.OPT, 1)) == 4.0
    assert durations.of(Action(Op.EU, 1)) == 0.9
    assert durations.num_bytes(Action(Op.SA, 0, 0)) == 40.0 * 200
    assert durations.num_bytes(Action(Op.EO, 0, 1, step=1)) == pytest.approx(6400 * 0.75 * 0.2)
    assert durations.num_bytes(Action(Op.PO, 0, -1, step=1)) == pytest.approx(6400 * 0.25)
    issue = profiled_cost(PROFILE, made).issue
    assert issue == {"EG0": pytest.approx(0.1 + 0.2), "ED0": 6.0}


@pytest.mark.parametrize(
    ("microbatches", "shares"), [(1, [1.0]), (2, [0.7, 0.3]), (8, [0.25, 0.25, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05])]
)
def test_first_uses_of_another_number_of_microbatches(microbatches, shares):
    assert profiled_cost(PROFILE, program(microbatches=microbatches)).first_use == pytest.approx(tuple(shares))


def test_the_share_beside_the_rows_and_files_without_it(tmp_path: Path):
    """Of a first stage of three blocks, one of which needs no rows; in one stage of two blocks that would be another share."""
    known = replace(PROFILE, blocks=[1.0, 2.0, 5.0, 9.0], beside=1, cuts={"2": replace(CUT, first=3)})
    assert profiled_cost(known, program()).beside_rows == pytest.approx(1 / 8)
    assert known.beside_rows(replace(CUT, first=2)) == pytest.approx(1 / 3)
    assert replace(known, beside=7).beside_rows(CUT) == 0.0 and replace(known, beside=7).beside_rows(known.cuts["2"]) == 1.0
    file = tmp_path / "profile.json"
    known.save(file)
    assert profiled_cost(load_profile(file), program()).beside_rows == pytest.approx(1 / 8)
    older = json.loads(file.read_text())
    del older["beside"], older["cuts"]["2"]["first"]
    file.write_text(json.dumps(older))
    assert profiled_cost(load_profile(file), program()).beside_rows == 0.0


def test_deferring_shares_out_what_issuing_and_updating_take():
    made = assemble("1f1b", Request(2, 4), Exchange("spread"), 3)
    cost, whole = profiled_cost(PROFILE, made), profiled_cost(PROFILE, program())
    assert cost.issue["EG0"] == pytest.approx(0.75 * whole.issue["EG0"])
    assert cost.issue["DG0"] == pytest.approx(0.25 * 4 * whole.issue["EG0"])
    assert cost.measured["EU1"] == pytest.approx(0.75 * 0.9) and cost.measured["DU1"] == pytest.approx(0.25 * 0.9)
    assert cost.issue["ED0"] == whole.issue["ED0"] and cost.measured["EL0"] == whole.measured["EL0"]


def test_both_directions_deal_the_rows_out():
    made = program("chimera", 4)
    cost = profiled_cost(PROFILE, made)
    assert made.microbatches == 2
    assert cost.row_bytes == 3200
    assert cost.measured["F1"] == pytest.approx(0.5 + 200 * 0.02)
    assert simulate(made, cost).makespan > 0


def test_round_trip_and_refusals(tmp_path: Path):
    file = tmp_path / "profile.json"
    PROFILE.save(file)
    again = load_profile(file)
    assert profiled_cost(again, program()) == profiled_cost(PROFILE, program())
    with pytest.raises(ConfigError, match=r"4 stages of the tower were not profiled, only 2"):
        profiled_cost(PROFILE, program("zbv"))
    with pytest.raises(ConfigError, match=r"No such file.*recpipe profile"):
        load_profile(tmp_path / "none.json")
    file.write_text("{}")
    with pytest.raises(ConfigError, match=r"not a profile"):
        load_profile(file)
