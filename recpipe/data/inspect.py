"""What is in a prepared directory, as text for people."""

from __future__ import annotations

from typing import Any

from recpipe.data.unseen import expected_unseen

WIDEST = 24


def render(manifest: dict[str, Any]) -> str:
    """Rows, sources, settings, and one line a column.

    Args:
        manifest: of a prepared directory.
    """
    warnings = [f"WARNING: {line}" for line in manifest["provenance"].get("warnings", ())]
    return "\n".join([*_top(manifest), "", *_dense(manifest), "", *_features(manifest), *warnings])


def _top(manifest: dict[str, Any]) -> list[str]:
    """Rows and sources."""
    rows = ", ".join(f"{count:,} {split}" for split, count in manifest["rows"].items())
    lines = [
        f"rows        {rows}",
        f"lines       {manifest['lines']:,} read, {manifest['bad_lines']:,} in quarantine",
        f"shards      {len(manifest['shards'])} of up to {manifest['rows_per_shard']:,} rows",
        f"transform   {manifest['transform']['name']}: {manifest['transform']['formula']}",
        f"vocabulary  {_vocabulary(manifest['vocabulary'])}",
        f"digest      {manifest['digest']}",
    ]
    for source in manifest["provenance"]["sources"]:
        lines.append(f"source      {source['name']} ({source['role']}): {source['lines']:,} lines")
    return lines


def _vocabulary(vocabulary: dict[str, Any]) -> str:
    """How values became ids."""
    if vocabulary["kind"] == "hash":
        return f"hash to {vocabulary['size']:,} ids; id 0 missing"
    return f"by frequency in training rows, at least {vocabulary['threshold']}; id 0 missing, 1 rare or unseen"


def _dense(manifest: dict[str, Any]) -> list[str]:
    """Raw range, missing share and transform of each dense column."""
    lines = [f"{'dense':<{WIDEST}} {'minimum':>14} {'maximum':>14} {'missing':>8}  transform"]
    for column in manifest["dense"]:
        low, high = (("-" if column[key] is None else f"{column[key]:,g}") for key in ("min", "max"))
        ends = f"{low:>14} {high:>14} {column['missing_share']:>8.2%}"
        lines.append(f"{column['name']:<{WIDEST}} {ends}  {_transform(column, manifest['transform']['name'])}")
    return lines


def _transform(column: dict[str, Any], default: str) -> str:
    """How a dense column is stored, and why."""
    name = column.get("transform", default)
    if name == "standardize":
        name = f"standardize (mean {column['mean']:,g}, deviation {column['deviation']:,g})"
    return f"{name}: {column['because']}" if column.get("because") else name


def _features(manifest: dict[str, Any]) -> list[str]:
    """Size of each table, and how often ids are missing or rare in training and held-out rows."""
    shares = f"{'missing':>8} {'rare':>8} {'expected':>9} {'rare held out':>14}"
    head = f"{'categorical':<{WIDEST}} {'ids':>12} {'a row':>7} {shares}  vector of unseen values"
    rows = manifest["rows"]
    held_out = [split for split in rows if split != "train"]
    lines = [head]
    for feature in manifest["features"]:
        ids = feature["ids"]
        missing = sum(feature["missing"].values()) / max(1, sum(ids.values()))
        rare = feature["rare"]["train"] / max(1, ids["train"])
        unseen = sum(feature["rare"][s] for s in held_out) / max(1, sum(ids[s] for s in held_out))
        mean = sum(ids.values()) / max(1, sum(rows.values()))
        expected = f"{expected_unseen(feature['counts']):.2%}" if "counts" in feature else "-"
        shares = f"{missing:>8.2%} {rare:>8.2%} {expected:>9} {unseen:>14.2%}"
        size = f"{feature['name']:<{WIDEST}} {feature['num_ids']:>12,} {mean:>7.2f}"
        lines.append(f"{size} {shares}  {_unseen_vector(feature)}")
    return lines


def _unseen_vector(feature: dict[str, Any]) -> str:
    """Whether training rows train the vector of unseen values."""
    if "counts" not in feature:
        return "-"
    return "trained" if feature["rare"]["train"] else "zero"
