"""What a user should know of a categorical column: it is cut in the wrong places, or held-out values are written otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from recpipe.data.prepare.inputs import Source
from recpipe.data.prepare.raw import SAMPLED, Format
from recpipe.data.prepare.units import Unit
from recpipe.data.prepare.vocabulary import FIRST, RARE, Encoder

T = TypeVar("T")
SEPARATORS = "|^;,"
FEW = 8
NEARLY_ALL, MANY = 0.9, 0.5
LISTS = ("[]", "{}", "()")
SHORT = 40


def samples_of(sources: Sequence[Source], units: Sequence[Unit], column: int, held_out: bool) -> list[str]:
    """Texts of a categorical column in the first rows of each file.

    Args:
        column: its number among the categorical columns.
        held_out: of files that are held out as a whole, else of the others.
    """
    texts: dict[int, list[str]] = {}
    for unit in units:
        if (sources[unit.source].role != "main") == held_out and column < len(unit.samples):
            texts.setdefault(unit.source, []).extend(unit.samples[column])
    return [text for one in texts.values() for text in one[:SAMPLED]]


def form_remarks(name: str, texts: Sequence[str], separator: str | None, longest: int) -> Iterator[str]:
    """Warnings about the form of the values of one column.

    Args:
        name: of the column.
        texts: some fields of it.
        separator: between several values of a field; None for a column of one value a field.
        longest: the most values of a field, over all rows.
    """
    texts = [text.strip() for text in texts if text.strip()]
    example = _short(texts[0]) if texts else ""
    if len(texts) >= FEW and _share(texts, lambda t: t[0] + t[-1] in LISTS) >= NEARLY_ALL:
        yield f"column {name} holds lists as text (`{example}`): their brackets become parts of the values"
        return
    if separator is None:
        found = next((one for one in SEPARATORS if _looks_joined(texts, one)), None)
        if found:
            yield (
                f"column {name} seems to hold several values in a field, joined by `{found}` (`{example}`); "
                f"data.multi_valued=[{name}] data.separator='{found}' tells them apart"
            )
    elif longest <= 1 and len(texts) >= FEW:
        shown = f", as in `{example}`" if example else ""
        yield f"multi-valued column {name} never holds two values{shown}; is data.separator='{separator}' right?"
    elif _share([t for t in texts if separator in t], lambda t: f"{separator} " in t) > NEARLY_ALL:
        yield f"values of column {name} begin with a space: `{example}` is cut at `{separator}` and spaces are kept"


def unseen_example(fmt: Format, encoder: Encoder, texts: Sequence[str], separator: str | None) -> str:
    """A clause that shows a value without an id and, where there is one, a known value that differs in its writing only.

    Args:
        fmt: gives keys to texts.
        encoder: gives ids to keys.
        texts: some fields of the rows.
        separator: between several values of a field; None for a column of one value a field.
    """
    values = list(dict.fromkeys(v for text in texts for v in (text.split(separator) if separator else [text]) if v))
    if not values:
        return ""
    unseen = [value for value, id in zip(values, _ids(fmt, encoder, values), strict=True) if id == RARE]
    for value in unseen:
        others = list(dict.fromkeys(_writings(value)))
        known = [other for other, id in zip(others, _ids(fmt, encoder, others), strict=True) if id >= FIRST]
        if known:
            return f"`{_short(value)}` is unseen, but training rows have `{_short(known[0])}`"
    return f"for example `{_short(unseen[0])}`" if unseen else ""


def _ids(fmt: Format, encoder: Encoder, values: list[str]) -> list[int]:
    return [int(id) for id in encoder.encode(fmt.keys(values))] if values else []


def _writings(value: str) -> Iterator[str]:
    """Other ways to write a value."""
    bare = value.strip().strip("\"'")
    yield from (value.strip(), bare, value.lower(), value.upper(), value.title(), value.capitalize(), f"{value}.0")
    if bare.endswith(".0"):
        yield bare[:-2]
    yield from (value.lstrip("0") or "0", value.lower().removeprefix("0x"), f"{value} ", f" {value}")
    if bare.isdigit():
        yield from (bare.zfill(width) for width in range(len(bare) + 1, 13))
    try:
        number = float(bare)
    except ValueError:
        return
    if np.isfinite(number) and number == int(number):
        yield from (str(int(number)), f"{int(number)}.0")


def _looks_joined(texts: Sequence[str], separator: str) -> bool:
    """Many fields have the character, not always as often, and what stands between is found at several places."""
    fields = [text.split(separator) for text in dict.fromkeys(texts)]
    if len(fields) < FEW or _share(fields, lambda f: len(f) > 1) < MANY or len({len(f) for f in fields}) < 2:
        return False
    places: Counter[str] = Counter()
    for value, _ in {(value.strip(), place) for field in fields for place, value in enumerate(field) if value.strip()}:
        places[value] += 1
    return sum(count > 1 for count in places.values()) * 2 > len(places)


def _share(things: Sequence[T], holds: Callable[[T], bool]) -> float:
    return sum(map(holds, things)) / len(things) if things else 0.0


def _short(text: str) -> str:
    return text if len(text) <= SHORT else f"{text[: SHORT - 3]}..."
