"""How raw rows become numbers, as a directory: a manifest without rows, and the vocabularies.

A prepared directory has such a directory inside it (its own manifest and `vocabulary/`), and so has a checkpoint, under
`encoding/`. Both are read by the same code; a digest of the content says whether two of them mean the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from recpipe.data.arrays import map_array
from recpipe.data.config import SCHEMAS, DataConfig
from recpipe.data.paths import AnyPath, copy_file, to_path
from recpipe.data.prepare.inputs import MANIFEST
from recpipe.errors import DataError

FOLDER, VOCABULARY = "encoding", "vocabulary"
# Of the rows that were prepared, not of how they were encoded.
_OF_ROWS = ("digest", "rows", "lines", "bad_lines", "rows_per_shard", "shards", "provenance", "origin", "base")
_OF_COLUMN = ("min", "max", "missing_share", "ids", "missing", "rare", "counts", "because", "threshold")
_OF_MAKING = ("threshold", "max_ids", "of")
# Settings that say where rows lie, how a file is laid out and how the work is done: they may differ from file to file.
_PLACES = {"path", "valid_path", "test_path", "out", "cache_dir"}
_SPLITS = {"valid_fraction", "test_fraction", "split_seed", "split", "time"}
_LAYOUT = {"format", "delimiter", "header", "columns", "separator", "label", "label_positive", "partition_columns"}
_WORK = {
    "max_bad_share",
    "memory_limit",
    "threads",
    "rows_per_shard",
    "frequency_threshold",
    "frequency_thresholds",
    "max_ids",
}
FREE = frozenset(_PLACES | _SPLITS | _LAYOUT | _WORK)


@dataclass(frozen=True)
class Encoding:
    """The encoding of some rows.

    Args:
        directory: has `manifest.json` and `vocabulary/`; local or remote.
        manifest: the content of the former.
    """

    directory: AnyPath
    manifest: Mapping[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the preparation; empty where ids were given (imported .npy files)."""
        return dict(self.manifest["provenance"]["settings"])

    @property
    def encodes(self) -> bool:
        """Raw rows can be encoded by it."""
        return bool(self.settings)

    @property
    def is_hashed(self) -> bool:
        """Ids are hashes: no value is unknown."""
        return bool(self.manifest["vocabulary"]["kind"] == "hash")

    @property
    def digest(self) -> str:
        """Of the content: equal digests give equal numbers for every raw row."""
        return _hash(meaning(self.manifest))

    @property
    def rows_digests(self) -> dict[str, str]:
        """Of the prepared rows of each split."""
        if "origin" in self.manifest:
            return dict(self.manifest["origin"]["rows"])
        shards = self.manifest["shards"]
        return {
            split: _hash(
                [{kind: file["sha256"] for kind, file in s["files"].items()} for s in shards if s["split"] == split]
            )
            for split in self.manifest["rows"]
        }

    def to_travel(self) -> str:
        """The manifest as a run keeps it: without shards, and with where its rows were."""
        place = self.directory.resolve() if isinstance(self.directory, Path) else self.directory
        origin = self.manifest.get("origin") or {"directory": str(place), "rows": self.rows_digests}
        return json.dumps({**self.manifest, "shards": [], "origin": origin}, indent=1) + "\n"

    def files(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Name and record (bytes, sha256) of each vocabulary file."""
        for feature in self.manifest["features"]:
            yield from feature.get("files", {}).items()

    @property
    def place(self) -> Path:
        """Where the vocabularies are; of a local directory."""
        return Path(str(self.directory)) / VOCABULARY

    def vocabulary(self, feature: int) -> tuple[np.ndarray, np.ndarray]:
        """Sorted keys of a feature and the id of each, mapped."""
        keys, ids = (self.place / f"{feature:03d}.{kind}.npy" for kind in ("keys", "ids"))
        found = map_array(keys, "iu", (None,)), map_array(ids, "iu", (None,))
        if len(found[0]) != len(found[1]):
            raise DataError(f"{keys}: has {len(found[0]):,} keys, beside {len(found[1]):,} ids; prepare the data again")
        return found

    def config(self, reading: Any) -> Any:
        """The settings record that raw rows are read with.

        Args:
            reading: attributes of `DataConfig`: the data settings of the run.
        """
        settings = self.settings
        record = SCHEMAS["criteo" if settings.get("name") == "criteo" else "table"]
        known = {field.name for field in fields(record)}
        given = {field.name: getattr(reading, field.name) for field in fields(DataConfig) if field.name != "name"}
        config = record(**{key: value for key, value in {**given, **settings}.items() if key in known})
        _check_types(config, record(), self.directory)
        return config


def _check_types(config: Any, usual: Any, where: AnyPath) -> None:
    """Raises DataError where a setting of a manifest is no value of its kind."""
    for one in fields(config):
        value, default = getattr(config, one.name), getattr(usual, one.name)
        if not (type(value) is type(default) or _is_like(value, default)):
            raise DataError(f"{where}: is damaged: the setting {one.name} is {_short(value)}")


def _is_like(value: Any, default: Any) -> bool:
    """A value of the kind of another one: numbers where a number or nothing may be, lists and mappings of any make."""
    if isinstance(default, float | NoneType):
        return isinstance(value, int | float | NoneType) and not isinstance(value, bool)
    if hasattr(default, "items"):
        return hasattr(value, "items")
    return isinstance(default, list) and not isinstance(value, str) and hasattr(value, "__iter__")


def meaning(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the numbers that a raw row becomes: a manifest without all that is of its rows."""
    kept = {key: value for key, value in manifest.items() if key not in _OF_ROWS}
    settings = manifest["provenance"]["settings"]
    return {
        **kept,
        "dense": [_without(entry, _OF_COLUMN) for entry in manifest["dense"]],
        "features": [_without(entry, _OF_COLUMN) for entry in manifest["features"]],
        "vocabulary": _without(manifest["vocabulary"], _OF_MAKING),
        "settings": {key: value for key, value in settings.items() if key not in FREE},
    }


def differences(saved: Encoding, now: Encoding) -> list[str]:
    """What `now` does otherwise than `saved`, one clause each; values added behind the known ones are no difference."""
    old, new = meaning(saved.manifest), meaning(now.manifest)
    found = _settings(old.pop("settings"), new.pop("settings"))
    before, after = old.pop("features"), new.pop("features")
    found += [
        f"{key}: {_short(old.get(key))} in the checkpoint, {_short(new.get(key))} in the data"
        for key in {**old, **new}
        if old.get(key) != new.get(key)
    ]
    names = [entry["name"] for entry in before]
    if names != [entry["name"] for entry in after]:
        return [
            *found,
            f"features: {_short(names)} in the checkpoint, {_short([e['name'] for e in after])} in the data",
        ]
    for number, (entry, other) in enumerate(zip(before, after, strict=True)):
        if _without(entry, ("num_ids", "files")) != _without(other, ("num_ids", "files")):
            found.append(f"feature {entry['name']} is read in another way")
        elif entry.get("files") != other.get("files") and not _continues(saved, now, number):
            found.append(f"feature {entry['name']}: the same ids stand for other values")
    return found


def _settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Settings that decide; a side without settings was not made from files."""
    if not old or not new:
        return [] if old == new else ["ids were given on one side, and made from values on the other"]
    # A setting that one side does not have was added since: its default is what was done before.
    keys = [key for key in old if key in new and old[key] != new[key]]
    return [f"data.{key}: {_short(old.get(key))} in the checkpoint, {_short(new.get(key))} in the data" for key in keys]


def _continues(saved: Encoding, now: Encoding, feature: int) -> bool:
    """Every known value has kept its id."""
    if not saved.manifest["features"][feature].get("files") or not now.manifest["features"][feature].get("files"):
        return False
    keys, ids = saved.vocabulary(feature)
    wider, others = now.vocabulary(feature)
    at = np.searchsorted(wider, keys)
    inside = bool(len(keys) == 0 or at[-1] < len(wider))
    return inside and bool((wider[at] == keys).all()) and bool((others[at] == ids).all())


def keep(encoding: Encoding, place: Path) -> None:
    """Makes `place` a local encoding directory of the same content, whole or not at all; links where it can.

    Raises:
        DataError: a vocabulary cannot be read, or has another checksum.
    """
    text = encoding.to_travel()
    with suppress(OSError):
        if (place / MANIFEST).read_text() == text:
            return
    partial = place.with_name(f".{place.name}.unfinished")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / VOCABULARY).mkdir(parents=True)
    for name, record in encoding.files():
        source = encoding.directory / VOCABULARY / name
        if isinstance(source, Path):
            link(source, partial / VOCABULARY / name)
        else:
            copy_file(source, partial / VOCABULARY / name, record["sha256"])
    (partial / MANIFEST).write_text(text)
    shutil.rmtree(place, ignore_errors=True)
    partial.rename(place)


def link(source: Path, target: Path) -> None:
    """A second name for a file that is never changed; a copy where the file system has no such thing."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def encoding_of(directory: str | Path) -> Encoding:
    """The encoding of a prepared directory, or of one that `keep` made."""
    from recpipe.data.prepared import read_manifest

    path = to_path(str(directory))
    return Encoding(path, read_manifest(path))


def _without(entry: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in names}


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
