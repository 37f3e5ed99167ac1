"""Counts the bytes this rank hands to others, by purpose. What a rank sends to itself is not traffic."""

from __future__ import annotations

from collections import Counter


class Traffic:
    """Bytes sent to other ranks since the last `reset`, by purpose (``ids``, ``rows``, ``row_gradients``, ``dense``)."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()

    def add(self, purpose: str, num_bytes: int) -> None:
        self.sent[purpose] += num_bytes
        self.messages[purpose] += 1

    def reset(self) -> None:
        self.sent.clear()
        self.messages.clear()

    def total(self, *purposes: str) -> int:
        """Bytes of the named purposes, or of all."""
        return sum(self.sent[purpose] for purpose in purposes) if purposes else sum(self.sent.values())
