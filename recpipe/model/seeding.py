"""Seeds and hash keys from names and numbers, the same in every process and version of Python."""

from __future__ import annotations

import hashlib

import torch


def stable_key(*parts: str | int) -> int:
    """A number in [0, 2^63) that depends on the parts, in order, and on nothing else."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator_for(*parts: str | int) -> torch.Generator:
    """A CPU generator seeded by :func:`stable_key`."""
    return torch.Generator().manual_seed(stable_key(*parts))
