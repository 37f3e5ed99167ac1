"""Text of strangers as a terminal may have it: control characters escaped, marks of direction too."""

from __future__ import annotations

import unicodedata

_SHOWN = 200
"""Characters of a text that a message shows."""


def shown(text: object, limit: int = _SHOWN) -> str:
    """A stranger's text as it can be printed: control characters and marks of direction escaped, a long one cut."""
    cut = str(text)
    more = f"... ({len(cut):,} characters)" if len(cut) > limit else ""
    return (
        "".join(_escaped(letter) if is_control(letter) else letter for letter in cut[: limit if more else None]) + more
    )


def printable(text: str) -> str:
    """A message as a terminal may have it: as `shown`, uncut; its lines and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(one) if is_control(one) and one not in "\n\t" else one for one in text)


def is_control(letter: str) -> bool:
    """C0, C1, DEL, marks of direction and of format, separators of lines, lone surrogates."""
    return unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode()
