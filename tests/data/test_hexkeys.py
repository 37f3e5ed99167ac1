"""Hex text to integers: the same as Python's own reading, and nothing else is accepted."""

import re

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from recpipe.data.prepare.hexkeys import hex_keys

HEX = re.compile(rb"[0-9a-fA-F]{1,8}")


@settings(deadline=None, max_examples=300)
@given(st.lists(st.one_of(st.from_regex(HEX, fullmatch=True), st.binary(max_size=10), st.just(b"")), min_size=1))
def test_values_missing_and_bad_are_told_apart(texts: list[bytes]) -> None:
    keys, missing, bad = hex_keys(pa.array(texts, pa.binary()))
    for text, key, gone, wrong in zip(texts, keys.tolist(), missing, bad, strict=True):
        assert gone == (text == b"")
        assert wrong == (text != b"" and not HEX.fullmatch(text))
        if not gone and not wrong:
            assert key == int(text, 16)


def test_every_byte_in_every_place() -> None:
    texts = [b"0" * place + bytes([byte]) + b"f" * (7 - place) for byte in range(256) for place in range(8)]
    _, _, bad = hex_keys(pa.array(texts, pa.binary()))
    assert [not HEX.fullmatch(text) for text in texts] == bad.tolist()


def test_largest_values_keep_all_their_bits() -> None:
    texts = [b"ffffffff", b"80000000", b"02625a01", b"00000000"]
    keys, missing, _ = hex_keys(pa.array(texts, pa.binary()))
    assert keys.tolist() == [2**32 - 1, 2**31, 40_000_001, 0]
    assert not missing.any()


def test_sliced_column() -> None:
    column = pa.array([b"a", b"0000000b", b"", b"0000000c"], pa.binary()).slice(1)
    assert hex_keys(column)[0].tolist()[::2] == [11, 12]
