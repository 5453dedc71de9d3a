"""Places to fill with what stood there, read from the HumanEval-Infilling format. Knows no model."""

import gzip
import json
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dg_lsp.context.document import Cursor, Snapshot
from dg_lsp.errors import InputFileError

_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Site:
    """A cursor between two texts, and the reference that belongs there."""

    id: str
    kind: str
    """`line-end`, `whole-line`, `block`, `span`, or what else the data says."""
    prefix: str
    suffix: str
    want: str
    test: str | None = None
    """Source of a function `check(candidate)` that fails unless the program is right."""
    entry_point: str | None = None
    """What `check` is called with."""
    path: str = ""
    """Of the file, as far as it is known."""

    @property
    def snapshot(self) -> Snapshot:
        """The buffer as an editor would have it."""
        return Snapshot(f"file:///{self.path or self.id}", 0, self.prefix + self.suffix)

    @property
    def offset(self) -> int:
        """The cursor in the snapshot's text, in code points."""
        return len(self.prefix)

    @property
    def num_lines(self) -> int:
        """Of the reference; a line end at its end is none more."""
        return self.want.rstrip("\n").count("\n") + 1

    def program(self, fill: str) -> str | None:
        """The completed program and the call of its tests; None where the site has none."""
        if self.test is None or self.entry_point is None:
            return None
        return f"{self.prefix}{fill}{self.suffix}\n{self.test}\ncheck({self.entry_point})\n"


def read_sites(path: Path) -> tuple[Site, ...]:
    """The sites of a JSONL file, plain or gzip, in its order.

    Whole lines in the data end with their line end. An editor's cursor would stand on a line of its own there, so that
    line end is given back to the suffix.

    Raises:
        InputFileError: it cannot be read, holds nothing, or a line of it is no site; the line's number is named.
    """
    found: dict[str, Site] = {}
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            site = _site(json.loads(line))
        except (ValueError, TypeError) as error:
            raise InputFileError(f"{path}, line {number}: {error}; the format is HumanEval-Infilling's") from error
        if site.id in found:
            raise InputFileError(f"{path}, line {number}: the task_id {site.id} came before")
        found[site.id] = site
    if not found:
        raise InputFileError(f"{path} holds no sites: one JSON object per line is expected")
    return tuple(found.values())


def sample(sites: Sequence[Site], limit: int | None, seed: int) -> tuple[Site, ...]:
    """All sites in their order; with a limit as many of them, drawn by the seed: a larger one draws the same first."""
    if limit is None:
        return tuple(sites)
    drawn = list(sites)
    random.Random(seed).shuffle(drawn)
    return tuple(drawn[:limit])


def _lines(path: Path) -> Iterator[str]:
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data.startswith(_GZIP) else data).decode("utf-8")
    except FileNotFoundError as error:
        raise InputFileError(f"no such file: {path}") from error
    except (OSError, EOFError, zlib.error) as error:  # gzip's own error is an OSError
        raise InputFileError(f"cannot read {path}: {error}") from error
    except UnicodeDecodeError as error:
        raise InputFileError(f"{path} is not UTF-8 (byte {error.start})") from error
    yield from text.split("\n")


def _site(tree: Any) -> Site:
    """The site of one object; ValueError and TypeError say what is wrong with it."""
    if not isinstance(tree, dict):
        raise TypeError("not an object")
    names = {"task_id": "id", "prompt": "prefix", "suffix": "suffix", "canonical_solution": "want"}
    given = {name: _text(tree, key) for key, name in names.items()}
    for key in ("test", "entry_point", "path", "kind"):
        if tree.get(key) is not None:
            given[key] = _text(tree, key)
    site = Site(**{"kind": "", **given})
    if not site.want.strip():
        raise ValueError("the canonical_solution is blank")
    site = _on_a_line_of_its_own(site)
    return site if site.kind else replace(site, kind=_kind(site))


def _text(tree: dict[str, Any], key: str) -> str:
    if key not in tree:
        raise ValueError(f"no {key}")
    if not isinstance(tree[key], str):
        raise TypeError(f"{key} is no string")
    return str(tree[key])


def _on_a_line_of_its_own(site: Site) -> Site:
    begins_line = not site.prefix or site.prefix.endswith("\n")
    if not (begins_line and site.want.endswith("\n")):
        return site
    return replace(site, want=site.want[:-1], suffix="\n" + site.suffix)


def _kind(site: Site) -> str:
    """By where the reference begins and ends."""
    place = Cursor.at(site.snapshot.text, site.offset)
    if place.is_blank_line and "\n" not in site.want.lstrip("\n"):
        return "whole-line"
    if place.is_blank_line:
        return "block"
    return "line-end" if place.is_line_end and "\n" not in site.want else "span"
