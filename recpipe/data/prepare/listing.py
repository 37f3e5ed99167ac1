"""What a place holds: a file, the data files of a folder, or the files that a pattern matches; and what is left out."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from recpipe.data.paths import AnyPath, is_remote, to_path
from recpipe.data.prepare.roles import roles_in, words_of
from recpipe.errors import ConfigError, DataError

COMPRESSIONS = (".gz", ".zst")
MANIFEST = "manifest.json"
PARQUET = b"PAR1"
_COMPRESSED = (*COMPRESSIONS, ".gzip", ".zstd")
_NOT_READ = (".bz2", ".xz", ".zip", ".7z", ".lz4", ".lzo", ".snappy", ".br", ".rar", ".tar", ".tgz")
_SAME = {".tab": ".tsv", ".pq": ".parquet", ".parq": ".parquet"}
_MAGIC = re.compile(r"[*?\[]")
_DEEPEST = 16
# Tables whose folders hold rows that were removed, too; a log of their own says which files count.
_LOGS = {"_delta_log": "Delta", ".hoodie": "Hudi"}


@dataclass(frozen=True)
class Found:
    """A file of a place.

    Args:
        path: the file.
        below: its name after those of its folders, below the place; empty where a setting names the file itself.
        ending: the kind of file that its name says, in small letters and without the compression.
    """

    path: AnyPath
    below: tuple[str, ...]
    ending: str

    @property
    def name(self) -> str:
        """As people see it."""
        return "/".join(self.below) or str(self.path)


@dataclass
class Listing:
    """The data files of a place, in natural order, and everything else with the reason that it is left out.

    Args:
        place: as the setting names it.
        endings: those of data files.
        files: found so far.
        left: (name, reason).
    """

    place: str
    endings: tuple[str, ...]
    files: list[Found] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)

    def read(self) -> Listing:
        """Fill it.

        Raises:
            DataError: the place does not exist.
            ConfigError: it is not a place of raw files.
        """
        path = to_path(self.place)
        if path.is_file():
            self.files.append(Found(path, (), ending_of(path.name)))
        elif path.is_dir():
            self._walk(path, ())
        elif _MAGIC.search(self.place):
            self._match()
        else:
            raise DataError(f"{path} does not exist; check data.path (a path with '=' or spaces needs quotes)")
        self.files.sort(key=lambda found: natural(found.below))
        return self

    def _walk(self, folder: AnyPath, below: tuple[str, ...]) -> None:
        """The data files of a folder, and of those below it that are partitions or say a role."""
        entries: list[AnyPath] = sorted(folder.iterdir(), key=lambda entry: natural((entry.name,)))
        _check_folder(folder, {entry.name for entry in entries})
        for entry in entries:
            names = (*below, entry.name)
            hidden = entry.name.startswith((".", "_"))
            if hidden:
                self.left.append(("/".join(names), "hidden"))
            elif not entry.is_dir():
                self._take(entry, names, None)
            elif ("=" in entry.name or roles_in(entry.name)) and len(names) < _DEEPEST:
                self._walk(entry, names)
            else:
                self.left.append((f"{'/'.join(names)}/", "sub-folder"))

    def _match(self) -> None:
        """What a pattern matches; folders stand for their files where it matches nothing else."""
        fixed, pattern = _parted(self.place)
        root = to_path(fixed)
        matches: list[AnyPath] = sorted(set(root.glob(pattern)), key=lambda match: natural(tuple(match.parts)))
        folders = [match for match in matches if match.is_dir()]
        files = [match for match in matches if match not in folders]
        wanted = pattern.rsplit("/", 1)[-1]
        for file in files:
            below = _below(file, root)
            if any(name.startswith((".", "_")) for name in below) and not wanted.startswith((".", "_")):
                self.left.append(("/".join(below), "hidden"))
            else:
                self._take(file, below, wanted)
        for folder in folders:
            below = _below(folder, root)
            if not files:
                self._walk(folder, below)
            elif "**" not in pattern:
                self.left.append((f"{'/'.join(below)}/", "sub-folder"))
        if not matches:
            raise DataError(f"{self.place} matches no file; check data.path")

    def _take(self, file: AnyPath, below: tuple[str, ...], pattern: str | None) -> None:
        """Judge a file by its name, and by its first bytes where the name says nothing."""
        ending = ending_of(file.name)
        reason = self._reason(file, ending)
        spelled = pattern is not None and file.is_file() and _spells(pattern, ending)
        if reason and not spelled:
            self.left.append(("/".join(below), reason))
        else:
            self.files.append(Found(file, below, ending if not reason or spelled else ".parquet"))

    def _reason(self, file: AnyPath, ending: str) -> str:
        """Why a file is no data file; empty where it is one."""
        if not file.is_file():
            return "not a file"
        if ending in self.endings:
            return ""
        if not ending and (words_of(file.name) or [""])[-1].isdigit():
            return ""
        if ".parquet" in self.endings and _is_parquet(file):
            return ""
        if ending in _NOT_READ:
            return f"{ending}, a compression that is not read"
        return f"ending {ending}" if ending else "no ending"


def is_pattern(place: str) -> bool:
    """Whether a setting names a pattern."""
    return bool(_MAGIC.search(place))


def ending_of(name: str) -> str:
    """The ending of a name without that of its compression, in small letters, one for each kind; '' for none."""
    plain = without_compression(name.lower())
    ending = f".{plain.rpartition('.')[2]}" if "." in plain.lstrip(".") else ""
    # day_0, part.0 and the like have a number, no ending.
    return "" if ending[1:].isdigit() else _SAME.get(ending, ending)


def without_compression(name: str) -> str:
    """The name without the ending of its compression."""
    ending = next((ending for ending in _COMPRESSED if name.lower().endswith(ending)), "")
    return name[: len(name) - len(ending)]


def natural(names: tuple[str, ...]) -> list[tuple[list[int | str], str]]:
    """A key that sorts day_2 before day_10."""
    return [([int(p) if p.isascii() and p.isdigit() else p for p in re.split(r"([0-9]+)", n)], n) for n in names]


def _spells(pattern: str, ending: str) -> bool:
    """Whether the last name of a pattern says the ending, or that there is none: then the name need not say more."""
    last = pattern.rpartition(".")[2] if "." in pattern else ""
    return not _MAGIC.search(last) if last else not ending


def _below(path: AnyPath, root: AnyPath) -> tuple[str, ...]:
    """The names of a path below a folder."""
    return tuple(path.parts)[len(tuple(root.parts)) :]


def _is_parquet(file: AnyPath) -> bool:
    """By the first bytes."""
    with file.open("rb") as opened:
        return bool(opened.read(len(PARQUET)) == PARQUET)


def _check_folder(folder: AnyPath, names: set[str]) -> None:
    """Raises ConfigError for a folder whose files are not what its rows are."""
    if MANIFEST in names:
        raise ConfigError(f"{folder} is a prepared directory; use data=prepared data.path={folder}")
    for log, kind in _LOGS.items():
        if log in names:
            raise ConfigError(
                f"{folder} is a {kind} table ({log}): its files hold removed rows, too, and a log says which count; "
                f"write its rows as Parquet files elsewhere and give that folder"
            )


def _parted(place: str) -> tuple[str, str]:
    """The folder in front of a pattern, and the pattern."""
    names = place.split("/")
    first = next(number for number, name in enumerate(names) if _MAGIC.search(name))
    fixed = "/".join(names[:first]) or ("/" if place.startswith("/") and not is_remote(place) else ".")
    pattern = "/".join(names[first:])
    return fixed, pattern + "/*" if names[-1] == "**" else pattern
