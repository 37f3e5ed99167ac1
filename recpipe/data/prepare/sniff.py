"""What a file is, by its first bytes: its name may say something else."""

from __future__ import annotations

PARQUET = "Parquet"
GZIP, ZSTD = ".gz", ".zst"
COMPRESSIONS = {GZIP: b"\x1f\x8b", ZSTD: b"\x28\xb5\x2f\xfd"}
_KINDS = (
    (b"PAR1", PARQUET),
    (b"PARE", "encrypted Parquet"),
    (b"ARROW1", "Arrow (Feather)"),
    (b"\xff\xff\xff\xff", "Arrow stream"),
    (b"FEA1", "Feather"),
    (b"ORC", "ORC"),
    (b"Obj\x01", "Avro"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"PK\x03\x04", "zip (or Excel)"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"\xff\x06\x00\x00sNaPpY", "snappy"),
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x89HDF", "HDF5"),
    (b"\x93NUMPY", "NumPy"),
    (b"SQLite format 3", "SQLite"),
    (b"\xd0\xcf\x11\xe0", "Excel"),
    (b"SEQ", "Hadoop sequence"),
    (b"\x80\x04\x95", "pickle"),
    (b"\x80\x05\x95", "pickle"),
)
_WIDE = ((b"\xff\xfe", "UTF-16 text"), (b"\xfe\xff", "UTF-16 text"))
_TAR, _TAR_AT = b"ustar", 257


def kind_of(head: bytes) -> str:
    """The kind of a binary file that begins so; empty for text and for what is not known."""
    for magic, kind in _KINDS:
        # Letters may begin a text, too; a binary file has bytes behind them that no text has.
        if head.startswith(magic) and (len(magic) > 3 or not magic.isalnum() or b"\x00" in head[:64]):
            return kind
    if head[_TAR_AT:].startswith(_TAR):
        return "tar"
    return ""


def wide_kind(head: bytes) -> str:
    """The kind of a text whose letters are wider than a byte; empty for others."""
    return next((kind for magic, kind in _WIDE if head.startswith(magic)), "UTF-16 text" if _has_zeros(head) else "")


def _has_zeros(head: bytes) -> bool:
    """Whether every second byte of the first ones is zero."""
    part = head[:64]
    return len(part) >= 8 and (not any(part[1::2]) or not any(part[0::2])) and any(part)


def compression_of(first: bytes, name: str) -> str:
    """How a file is compressed: by its first bytes, else by its name; empty for not at all."""
    for ending, magic in COMPRESSIONS.items():
        if first.startswith(magic):
            return ending
    return next((ending for ending in COMPRESSIONS if name.lower().endswith(ending)), "")
