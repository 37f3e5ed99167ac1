"""Cases 8 to 11 and 23: bad ids, non-finite values and malformed batches stop where the batch is built."""

from dataclasses import replace

import pytest
import torch

from recpipe.batch import Batch
from recpipe.data.check import Policy, check_batch
from recpipe.errors import ConfigError, DataError
from recpipe.specs import Feature, Schema

SCHEMA = Schema(2, (Feature("user", 10), Feature("item", 5)))


def jagged() -> Batch:
    """Rows 100, 101, 102: user [1] [2] [3], item [4, 0] [] [1]."""
    return Batch(
        dense_BD=torch.zeros(3, 2),
        ids_N=torch.tensor([1, 2, 3, 4, 0, 1]),
        lengths_FB=torch.tensor([1, 1, 1, 2, 0, 1], dtype=torch.int32),
        labels_B=torch.tensor([0.0, 1.0, 0.0]),
        first_row=100,
    )


def with_ids(*changes: tuple[int, int]) -> Batch:
    ids = jagged().ids_N.clone()
    for position, value in changes:
        ids[position] = value
    return replace(jagged(), ids_N=ids)


def test_a_good_batch_passes_unchanged() -> None:
    batch = jagged()
    assert check_batch(batch, SCHEMA, Policy()) is batch


@pytest.mark.parametrize("bad", [-1, 5, 2**31, -(2**40)])
def test_bad_id_error_names_feature_value_and_row(bad: int) -> None:
    with pytest.raises(DataError, match=rf"id {bad} at feature item, row 102 is outside \[0, 5\)"):
        check_batch(with_ids((5, bad)), SCHEMA, Policy())


@pytest.mark.parametrize("policy", ["clamp", "hash", "oov"])
def test_bad_ids_are_replaced_inside_the_table_and_counted(policy: str) -> None:
    rule = Policy(bad_ids=policy)
    fixed = check_batch(with_ids((0, 99), (3, -7), (5, 5)), SCHEMA, rule)
    assert rule.bad_id_counts == {"user": 1, "item": 2}
    assert fixed.ids_N[[1, 2, 4]].tolist() == [2, 3, 0]
    assert 0 <= int(fixed.ids_N[0]) < 10 and 0 <= int(fixed.ids_N[3]) < 5 and 0 <= int(fixed.ids_N[5]) < 5
    expected = {"clamp": [9, 0, 4], "oov": [1, 1, 1]}
    if policy in expected:
        assert fixed.ids_N[[0, 3, 5]].tolist() == expected[policy]


def test_drop_takes_the_id_out_of_its_bag() -> None:
    rule = Policy(bad_ids="drop")
    fixed = check_batch(with_ids((1, 10), (3, 5)), SCHEMA, rule)
    assert fixed.ids_N.tolist() == [1, 3, 0, 1]
    assert fixed.lengths_FB.tolist() == [1, 0, 1, 1, 0, 1]
    assert fixed.num_rows == 3 and not fixed.one_hot
    check_batch(fixed, SCHEMA, Policy())


def test_one_hot_bad_id_is_found_in_any_feature() -> None:
    batch = Batch(
        torch.zeros(2, 2), torch.tensor([1, 2, 3, 5]), torch.ones(4, dtype=torch.int32), torch.zeros(2), one_hot=True
    )
    with pytest.raises(DataError, match="id 5 at feature item, row 1"):
        check_batch(batch, SCHEMA, Policy())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_dense_value_names_row_and_column(value: float) -> None:
    batch = jagged()
    batch.dense_BD[1, 1] = value
    with pytest.raises(DataError, match="row 101, dense column 1"):
        check_batch(batch, SCHEMA, Policy())


def test_non_finite_row_is_dropped_and_counted() -> None:
    batch, rule = jagged(), Policy(non_finite="drop")
    batch.dense_BD[0, 0] = float("nan")
    kept = check_batch(batch, SCHEMA, rule)
    assert (kept.num_rows, kept.num_dropped, rule.dropped_rows) == (2, 1, 1)
    assert kept.ids_N.tolist() == [2, 3, 1]
    assert kept.lengths_FB.tolist() == [1, 1, 0, 1]
    assert kept.labels_B.tolist() == [1.0, 0.0]


def test_non_finite_weight_is_named() -> None:
    schema = Schema(2, (Feature("user", 10), Feature("item", 5, weighted=True)))
    weights = torch.tensor([1.0, 1.0, 1.0, 1.0, float("nan"), 1.0])
    with pytest.raises(DataError, match="weight nan at feature item, row 100"):
        check_batch(replace(jagged(), weights_N=weights), schema, Policy())
    kept = check_batch(replace(jagged(), weights_N=weights), schema, Policy(non_finite="drop"))
    assert kept.labels_B.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids_N": torch.tensor([1, 2, 3])}, "lengths add up to 6 but there are 3 ids"),
        ({"lengths_FB": torch.ones(4, dtype=torch.int32)}, r"lengths has shape \(4,\), expected \(6,\)"),
        ({"lengths_FB": torch.tensor([1, 1, 1, 3, -1, 1], dtype=torch.int32)}, "length -1 at feature item, row 101"),
        ({"dense_BD": torch.zeros(3, 1)}, r"dense has shape \(3, 1\), expected \(3, 2\)"),
        ({"one_hot": True}, "one_hot, yet length 2 at feature item, row 100"),
        ({"weights_N": torch.ones(2)}, r"weights has shape \(2,\), expected \(6,\)"),
        ({"labels_B": torch.tensor([0.0, 2.0, 1.0])}, "label 2.0 in row 101"),
    ],
)
def test_malformed_batch_says_what_does_not_fit(change: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_batch(replace(jagged(), **change), SCHEMA, Policy())


def test_unlabelled_rows_pass() -> None:
    batch = replace(jagged(), labels_B=torch.full((3,), float("nan")))
    assert check_batch(batch, SCHEMA, Policy()) is batch


def test_empty_batch_passes() -> None:
    empty = Batch(
        torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), torch.zeros(0)
    )
    assert check_batch(empty, SCHEMA, Policy(bad_ids="drop")).num_rows == 0


def test_unknown_policies_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean clamp"):
        Policy(bad_ids="clam")
    with pytest.raises(ConfigError, match="non_finite=skip"):
        Policy(non_finite="skip")
