"""Cases 104, 114, 115: held-out values that training rows do not have, told by feature; wrong separators; the unseen vector."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recpipe.data import open_dataset
from recpipe.data.unseen import UnseenShare, unseen_messages
from recpipe.model.rows import init_rows
from recpipe.specs import TableSpec
from tests.data.columns import manifest_of, settings, warnings_of, write_columns
from tests.data.lines import criteo_config, criteo_lines, silent, write_lines

RNG = np.random.default_rng(0)
USERS = [str(n) for n in RNG.zipf(1.3, 600) % 50]


def table(folder: Path, values: list[str], name: str = "a.csv") -> Path:
    """A table of one category."""
    return write_columns(folder / name, {"label": [n % 2 for n in range(len(values))], "user": values})


def warned(folder: Path, train: list[str], valid: list[str], **changes: Any) -> list[str]:
    """Warnings where one file is trained on and the other is held out."""
    held_out = table(folder, valid, "valid.csv")
    given = {"categorical": ["user"], "valid_path": str(held_out)} | changes
    return warnings_of(table(folder, train), **given)


WRITINGS: dict[str, tuple[Callable[[str], str], Callable[[str], str]]] = {
    "float": (str, lambda v: f"{v}.0"),
    "whole": (lambda v: f"{v}.0", str),
    "upper": (lambda v: f"u{v}", lambda v: f"U{v}"),
    "zeros": (lambda v: v.zfill(4), str),
    "no zeros": (str, lambda v: v.zfill(4)),
    "space behind": (str, lambda v: f"{v} "),
    "space before": (lambda v: f" {v}", str),
    "scientific": (lambda v: str(10000 * int(v)), lambda v: f"{int(v)}e4"),
    "quotes": (str, lambda v: f"'{v}'"),
}


@pytest.mark.parametrize("name", WRITINGS)
def test_values_written_otherwise_are_told_with_an_example(tmp_path: Path, name: str) -> None:
    """Case 104: `7` and `7.0`."""
    before, after = WRITINGS[name]
    (warning,) = warned(tmp_path, [before(v) for v in USERS], [after(v) for v in USERS[:60]])
    assert warning.startswith("feature user: 100.0% of the values in held-out rows have no id")
    assert "is unseen, but training rows have `" in warning


def test_another_hash_is_told(tmp_path: Path) -> None:
    """Case 104: there is no other writing to show."""
    (warning,) = warned(tmp_path, USERS, [f"{hash(v):x}" for v in range(10**6, 10**6 + 60)])
    assert "100.0%" in warning and "for example `" in warning


def test_hex_values_of_criteo_are_told_too(tmp_path: Path) -> None:
    train, valid = criteo_lines(600), criteo_lines(100, seed=1)
    other = [
        b"\t".join(line.split(b"\t")[:14] + [b"%08x" % (n * 77 + k) for k in range(26)]) for n, line in enumerate(valid)
    ]
    path = write_lines(tmp_path / "valid.txt", other)
    config = criteo_config(write_lines(tmp_path / "train.txt", train), valid_path=str(path))
    warnings = open_dataset(config, log=silent).warnings
    assert sum(line.startswith("feature cat_") for line in warnings) == 8 and "18 more: cat_" in warnings[-1]


@pytest.mark.parametrize(
    ("train", "valid"),
    [
        (USERS, USERS[:60]),
        ([str(n) for n in range(600)], [str(n) for n in range(600, 660)]),
        ([str(n) for n in RNG.integers(0, 400, 600)], [str(n) for n in RNG.integers(0, 400, 60)]),
        (USERS, [*USERS[:50], *(f"new{n}" for n in range(10))]),
        (USERS, ["new", "newer"]),
        (USERS, [""] * 60),
    ],
)
@pytest.mark.parametrize("threshold", [1, 2, 5])
def test_what_is_to_be_expected_is_not_told(tmp_path: Path, train: list[str], valid: list[str], threshold: int) -> None:
    """A column of nearly unique values is unseen in held-out rows by its nature; a few new values are normal."""
    assert warned(tmp_path, train, valid, frequency_threshold=threshold) == []


def test_the_expected_share_is_that_of_rows_of_the_same_kind(tmp_path: Path) -> None:
    """Case 114: a random tenth of the rows has as many unseen values as was expected, up to chance."""
    values = [str(n) for n in RNG.zipf(1.2, 6000) % 100_000]
    found = manifest_of(table(tmp_path, values), categorical=["user"], valid_fraction=0.2)
    data = open_dataset(settings(tmp_path / "a.csv", categorical=["user"], valid_fraction=0.2), log=silent)
    shares = data.unseen["user"]
    assert shares["valid"] == pytest.approx(shares["expected"], abs=0.08) and shares["expected"] > 0.1
    assert found["features"][0]["counts"]["expected_unseen"] == shares["expected"]


def test_messages_of_many_features_name_the_worst_and_list_the_rest() -> None:
    """The function that eval and score use: shares in, messages out."""
    shares = [UnseenShare(f"f{n}", 0.0, 100, 40 + n) for n in range(12)] + [UnseenShare("fine", 0.3, 100, 40)]
    found = unseen_messages(shares, "the scored rows")
    assert len(found) == 9 and found[0].startswith("feature f11: 51.0% of the values in the scored rows have no id")
    assert found[-1] == "the same holds for 4 more: f3, f2, f1, f0"


TAGS = [[f"t{n}" for n in RNG.choice(9, size=1 + i % 3, replace=False)] for i in range(300)]


@pytest.mark.parametrize(
    ("written", "changes", "words"),
    [
        ([",".join(t) for t in TAGS], {"separator": "|"}, "never holds two values"),
        ([" ".join(t) for t in TAGS], {}, "never holds two values"),
        ([f"[{', '.join(t)}]" for t in TAGS], {"separator": ","}, "lists as text"),
        (["[" + "; ".join(f'"{v}"' for v in t) + "]" for t in TAGS], {}, "lists as text"),
        ([", ".join(t) for t in TAGS], {"separator": ","}, "begin with a space"),
        (["|".join(t) for t in TAGS], {"multi_valued": []}, "data.multi_valued=[tags] data.separator='|'"),
        ([f"[{'; '.join(t)}]" for t in TAGS], {"multi_valued": []}, "lists as text"),
    ],
)
def test_several_values_that_are_not_told_apart(tmp_path: Path, written: list[str], changes: Any, words: str) -> None:
    """Case 104: a wrong separator, lists as text; tab separated, so that commas are allowed."""
    path = write_columns(tmp_path / "a.tsv", {"label": [0, 1] * 150, "tags": written}, "\t")
    given = {"categorical": ["tags"], "multi_valued": ["tags"], "delimiter": "\t"} | changes
    (warning,) = warnings_of(path, **given)
    assert words in warning and "tags" in warning


@pytest.mark.parametrize(
    "values",
    [
        ["Paris, France", "Rome, Italy", "Bern, Switzerland", "Lyon, France", "Oslo, Norway"] * 60,
        [f"2024-01-{1 + n % 28:02d}" for n in range(300)],
        ["a|b", "c", "d", "e"] * 75,
        ["Home > Garden", "Home > Kitchen", "Toys"] * 100,
        ["Smith, John, Jr.", "Doe, Jane", "Roe, Richard", "Poe, Edgar, A."] * 75,
        ["(unknown)", "x", "y"] * 100,
    ],
)
def test_ordinary_texts_are_not_taken_for_lists(tmp_path: Path, values: list[str]) -> None:
    path = write_columns(tmp_path / "a.tsv", {"label": [0, 1] * 150, "tags": values}, "\t")
    assert not [w for w in warnings_of(path, categorical=["tags"], delimiter="\t") if "joined" in w or "lists" in w]


def test_a_right_separator_raises_no_warning(tmp_path: Path) -> None:
    path = write_columns(tmp_path / "a.csv", {"label": [0, 1] * 150, "tags": ["^".join(t) for t in TAGS]})
    assert warnings_of(path, categorical=["tags"], multi_valued=["tags"]) == []


def test_rare_values_train_the_vector_of_unseen_ones(tmp_path: Path) -> None:
    """Case 115: by default a value that occurs once shares id 1."""
    values = [*USERS, *(f"once{n}" for n in range(20))]
    found = manifest_of(table(tmp_path, values), categorical=["user"], valid_fraction=0.0, test_fraction=0.0)
    assert found["features"][0]["rare"]["train"] >= 20 and found["features"][0]["threshold"] == 2
    data = open_dataset(
        settings(tmp_path / "a.csv", categorical=["user"], valid_fraction=0.0, test_fraction=0.0), log=silent
    )
    assert data.schema.features[0].zero_rows == (0,)


def test_ids_that_no_training_row_has_start_at_zero(tmp_path: Path) -> None:
    """Case 115: where nothing trains the unseen vector, it is zero and not random; the same for a missing value."""
    table(tmp_path, [*USERS[:60], ""], "valid.csv")
    given = {"categorical": ["user"], "frequency_threshold": 1, "valid_path": str(tmp_path / "valid.csv")}
    (feature,) = open_dataset(settings(table(tmp_path, USERS), **given), log=silent).schema.features
    assert feature.zero_rows == (0, 1)
    trained = open_dataset(settings(table(tmp_path, [*USERS, ""], "b.csv"), **given), log=silent)
    assert trained.schema.features[0].zero_rows == (1,)


def test_zero_rows_are_zero_in_every_cut_of_a_table() -> None:
    spec = TableSpec("t", "f", 9000, 8, zero_rows=(0, 1))
    whole = init_rows(spec, 0, 9000, seed=3)
    assert not whole[:2].any() and whole[2:].ne(0).all(dim=1).all()
    cuts = [0, 1, 2, 5000, 9000]
    parts = [init_rows(spec, a, b, seed=3) for a, b in zip(cuts, cuts[1:], strict=False)]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(init_rows(TableSpec("t", "f", 9000, 8), 0, 9000, seed=3)[2:], whole[2:])


def test_warnings_are_printed_by_prepare_and_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cases 104 and 114: also when the directory is there already."""
    from recpipe.cli.main import main

    train, valid = table(tmp_path, USERS), table(tmp_path, [f"{v}.0" for v in USERS], "valid.csv")
    words = ["data", "prepare", f"source={train}", f"out={tmp_path / 'out'}", "data=table", "data.categorical=[user]"]
    for _ in range(2):
        assert main([*words, f"data.valid_path={valid}"]) == 0
        assert "WARNING: feature user: 100.0%" in capsys.readouterr().err
    assert main(["data", "inspect", str(tmp_path / "out")]) == 0
    assert "WARNING: feature user: 100.0%" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["provenance"]["warnings"]
