"""Cases 4 and 6: transforms give finite values for every input, and depend on nothing but the value."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recpipe.data.config import TRANSFORMS
from recpipe.data.prepare.moments import BLOCK, Moments
from recpipe.data.prepare.transform import apply, check_transforms, standardize
from recpipe.errors import ConfigError


@pytest.mark.parametrize("name", TRANSFORMS)
@given(value=st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)))
def test_every_finite_value_stays_finite(name: str, value: float) -> None:
    assert np.isfinite(apply(name, np.array([float(value)]))).all()


def test_known_values() -> None:
    values = np.array([-3.0, -2.0, 0.0, 2.0, 100.0])
    assert apply("log", values) == pytest.approx([0.0, 0.0, np.log(3), np.log(5), np.log(103)], rel=1e-6)
    assert apply("log1p", values) == pytest.approx([0.0, 0.0, 0.0, np.log(3), np.log(101)], rel=1e-6)
    assert apply("squared_log", values).tolist() == [-3.0, -2.0, 0.0, 2.0, 21.0]
    assert apply("none", values).tolist() == values.tolist()


def test_a_constant_column_standardizes_to_zero() -> None:
    assert standardize(np.full(3, 7.0), 7.0, 0.0).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("cuts", [1, 3, 1000])
def test_moments_are_bit_equal_however_the_stream_is_cut(cuts: int) -> None:
    values = np.random.default_rng(0).lognormal(3, 4, BLOCK * 2 + 777).astype(np.float32)
    whole, parts = Moments(), Moments()
    whole.add(values)
    for piece in np.array_split(values, cuts):
        parts.add(piece)
    assert parts.result() == whole.result()
    assert whole.result() == pytest.approx((values.mean(dtype=float), values.std(dtype=float)), rel=1e-9)


def test_unknown_transform_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean standardize"):
        check_transforms("standardise", {})
