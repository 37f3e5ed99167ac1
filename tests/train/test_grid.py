"""A short random grid for `recpipe verify`: two ranks, all settings on the same processes (tools/verify_grid.py)."""

from __future__ import annotations

from typing import Any

from recpipe.comm import Groups
from recpipe.errors import RecpipeError
from tests.ranks import run_ranks
from tools.grid_settings import Setting, draw, is_expected
from tools.verify_grid import composed, judge, refusal

SEED, COUNT = 7, 20
MESHES = ((2, 1), (1, 2))


def judge_all(rank: int, world: int, cases: list[tuple[Any, Setting]]) -> list[tuple[str, str]]:
    groups = Groups.create()
    return [judge(cfg, groups, setting.words, setting.tolerance) for cfg, setting in cases]


def test_random_settings_equal_the_reference_or_are_refused_as_stated():
    cases, found = [], []
    for number in range(COUNT):
        setting = draw(SEED, number, MESHES)
        try:
            cases.append((composed(setting), setting))
        except RecpipeError as error:
            found.append((*refusal(error, setting.words), setting.command))
    for rank in run_ranks(judge_all, 2, cases):
        found += [(*outcome, setting.command) for outcome, (_, setting) in zip(rank, cases, strict=True)]
    wrong = [one for one in found if one[0] not in ("same", "refused")]
    assert not wrong, "\n".join("\n".join(one) for one in wrong)
    assert sum(one[0] == "same" for one in found) > COUNT // 2


def test_a_setting_is_the_same_whatever_was_drawn_before():
    assert draw(3, 5, MESHES) == draw(3, 5, MESHES) != draw(3, 6, MESHES)


def test_a_refusal_is_expected_only_where_its_settings_are():
    words = {"model.batch_norm": "true"}
    assert is_expected("batch normalisation couples rows", words)
    assert not is_expected("batch normalisation couples rows", {})
    assert not is_expected("something else", words)
