"""The text form: what it accepts, and how it refuses."""

from __future__ import annotations

import pytest

from recpipe.errors import ScheduleError
from recpipe.schedule.ir import STEP_OPS, Action, Op
from recpipe.schedule.text import format_program, parse_action, parse_program
from tests.schedule.cases import program


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("F3.2", Action(Op.F, 3, 2)),
        ("F3.2@1", Action(Op.F, 3, 2, 1)),
        ("1:F3.2", Action(Op.F, 3, 2, 0, 1)),
        ("12:SA10.20@30", Action(Op.SA, 10, 20, 30, 12)),
        ("2:OPT3@1", Action(Op.OPT, 3, replica=1, step=2)),
    ],
)
def test_action(text: str, action: Action) -> None:
    assert parse_action(text) == action
    assert str(action) == text


def test_actions_are_ordered_and_hashable() -> None:
    assert len({Action(Op.F, 0, 1), Action(Op.F, 0, 1), Action(Op.F, 0, 2)}) == 2
    assert sorted([Action(Op.F, 0, 2), Action(Op.B, 1, 0), Action(Op.F, 0, 1)])[-1] == Action(Op.F, 0, 2)
    with pytest.raises(AttributeError):
        Action(Op.F, 0, 1).stage = 2  # type: ignore[misc]


@pytest.mark.parametrize("text", ["", "F", "F1", "X1.2", "F1.2@", "f1.2", "F1.2 ", "R1.2", "-1:F1.2", "F1.2.3"])
def test_not_an_action(text: str) -> None:
    with pytest.raises(ScheduleError, match=r"F1|is not an action|happens once a step|a microbatch"):
        parse_action(text)


def test_step_ops_have_no_microbatch() -> None:
    for op in Op:
        text = f"{op}3" if op in STEP_OPS else f"{op}3.1"
        assert str(parse_action(text)) == text


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("lanes 1\n", "", "missing lines .'lanes'."),
        ("lag 0", "lagg 0", "unknown lines .'lagg'."),
        ("rank 1:", "rank 2:", "line 11: rank 2 comes where rank 1 is expected"),
        ("F0.1", "F0.x", "line 10: 'F0.x' is not an action"),
        ("lanes 1", "lanes one", "lanes one: must be a number in 1 to"),
        ("replica 0: 0 1", "replica 0: 0 1 2", "2 rank lines for 3 ranks"),
    ],
)
def test_broken_programs(old: str, new: str, words: str) -> None:
    text = format_program(program("1f1b"))
    assert old in text
    with pytest.raises((ScheduleError, ValueError), match=words):
        parse_program(text.replace(old, new))


def test_comments_and_blank_lines() -> None:
    made = program("dualpipe", ranks=2, microbatches=4)
    assert parse_program("# by hand\n\n" + format_program(made).replace("rank 0", "\n# here\nrank 0")) == made
