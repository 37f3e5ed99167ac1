"""One plain file read by several readers at the same time: the result of one reader, byte for byte."""

import zlib
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recpipe.data.prepare import formats, phases
from recpipe.data.prepare.chunks import ChunkReader
from recpipe.data.prepare.crc import joined_crc
from recpipe.data.prepare.inputs import find_sources
from recpipe.data.prepare.job import prepare
from recpipe.data.prepare.streams import Span, blocks
from tests.data.lines import contents, criteo_config, criteo_lines, silent, write_lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spans")


@settings(deadline=None, max_examples=300)
@given(
    lines=st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")), min_size=1, max_size=30),
    last=st.sampled_from([b"", b"\n"]),
    step=st.integers(1, 40),
    size=st.integers(1, 30),
)
def test_each_line_is_read_by_the_one_reader_whose_span_it_begins_in(
    folder: Path, lines: list[bytes], last: bytes, step: int, size: int
) -> None:
    text = b"\n".join(lines) + last
    path = folder / "text.txt"
    path.write_bytes(text)
    spans = [Span(start, min(start + step, len(text))) for start in range(0, len(text), step)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recpipe.data.prepare.streams.READ", size)
        parts = [b"".join(blocks(path, span=span)) for span in spans]
    begins = [0, *(n + 1 for n in range(len(text) - 1) if text[n : n + 1] == b"\n"), len(text)]
    rows = [(start, text[start:end]) for start, end in pairwise(begins)]
    wanted = [b"".join(row for start, row in rows if span.start <= start < span.stop) for span in spans]
    assert parts == [wanted[0].removeprefix(b"\xef\xbb\xbf"), *wanted[1:]] if text else parts == []


@settings(deadline=None, max_examples=100)
@given(parts=st.lists(st.binary(max_size=200), max_size=6))
def test_checksum_of_pieces_is_that_of_the_text(parts: list[bytes]) -> None:
    assert joined_crc((zlib.crc32(part), len(part)) for part in parts) == zlib.crc32(b"".join(parts))


def manifest(out: Path) -> str:
    return (out / "manifest.json").read_text()


@pytest.mark.parametrize("span", [1000, 4096, 50_000])
@pytest.mark.parametrize("threads", [1, 4])
def test_the_prepared_directory_is_that_of_one_reader(
    tmp_path: Path, span: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a bad line, a line longer than a chunk and than a span, a byte-order mark, and no newline at the end."""
    monkeypatch.setattr("recpipe.data.prepare.job.chunk_size", lambda limit, threads: 3000)
    lines = criteo_lines(400)
    lines[50], lines[120] = b"bad", b"1\t" + b"x" * 9000
    path = tmp_path / "train.txt"
    path.write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines))
    one = prepare(criteo_config(path, out=str(tmp_path / "one"), max_bad_share=0.1), silent)
    monkeypatch.setattr(formats, "SPAN", span)
    many = prepare(criteo_config(path, out=str(tmp_path / "many"), max_bad_share=0.1, threads=threads), silent)
    assert contents(many) == contents(one) and manifest(many) == manifest(one)
    assert (many / "quarantine.jsonl").read_text().count("\n") == 2


def test_interrupted_it_goes_on_with_the_same_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recpipe.data.prepare.job.chunk_size", lambda limit, threads: 3000)
    path = write_lines(tmp_path / "train.txt", criteo_lines(300))
    one = prepare(criteo_config(path, out=str(tmp_path / "one")), silent)
    monkeypatch.setattr(formats, "SPAN", 9000)
    left = [12]

    def stopping(*given: object) -> None:
        left[0] -= 1
        if not left[0]:
            raise OSError(5, "stopped here")
        write(*given)

    write = phases.write_unit
    with monkeypatch.context() as patch, pytest.raises(Exception, match="stopped here"):
        patch.setattr(phases, "write_unit", stopping)
        prepare(criteo_config(path, out=str(tmp_path / "two")), silent)
    two = prepare(criteo_config(path, out=str(tmp_path / "two"), threads=3), silent)
    assert contents(two) == contents(one) and manifest(two) == manifest(one)


def test_compressed_files_have_one_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "SPAN", 1000)
    for name, several in (("a.txt", True), ("b.txt.gz", False)):
        path = write_lines(tmp_path / name, criteo_lines(100))
        sources = find_sources(str(path), "", "", (".txt",), "data=criteo")
        config = criteo_config(path)
        found = formats.make_readers(config, sources, formats.make_formats(config, sources), 9000, lambda count: None)
        assert (len(found) > 1) == several
        assert all(isinstance(reader, ChunkReader) and reader.source == 0 for reader in found)
