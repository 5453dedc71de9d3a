"""Whether a model is used for a document and at a cursor, and the reason if it is not.

An excluded document is never sent to a model, neither for completion nor as context of other files. Secrets in the
context of other files are masked. This is the only place that decides it: editors, `dg-lsp why`, the audit log and the
HTTP server show the reason.
"""

import functools
import os
import re
import stat
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from pathlib import Path, PureWindowsPath
from typing import Any, Self
from urllib.parse import unquote

from dg_lsp.context.document import Cursor, Snapshot, path_of, split_uri
from dg_lsp.gitignore import MAX_FOLDERS, Pattern, Rule, anywhere, compiled, folded, is_excluded, path_bytes
from dg_lsp.settings import PrivacySettings

_MAX_NAME = 255
"""Characters of a name in a path: no system allows more."""
MAX_LOCAL_PATH = 4096
"""Longest path of a file on Linux and macOS, and of nearly all on Windows."""
_BEFORE = re.compile(r"^(\.?#|~\$|\.~lock\.|copy (\(\d{1,9}\) )?of )*(.*[%!](?=.))?")
_BEHIND = re.compile(
    r"(~|#| \(\d{1,9}\)| \(([\w ]{1,20} )?copy( \d{1,9})?\)| (- )?copy( \d{1,9})?"
    r"|[._-](bak|backup|copy|git|kate-swp|old|orig|rej|save|sw[a-p]|temp|tmp|txt|un|\d{1,14}"
    r"|ci|dev|development|live|local|prod|production|qa|stage|staging|test|testing|uat))+(?=\.\w+$|$)"
)
"""Beginnings and ends of the names of backups, swap files, copies and variants for one machine.

`%` and `!` stand for the slashes of a path in swap folders; `.git` ends a former version in VS Code.
"""
_DRIVE = re.compile(r"[A-Za-z]:")
_TRAILING = re.compile(r"(?<![. ])[. ]++(?=/|$)")  # ignored by Windows
_STREAM = re.compile(r"[. ]*:[^/]*$")  # of a file on Windows
_INVISIBLE = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")  # some are ignored by macOS
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?:[^-]|-(?!----BEGIN ))*?-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|[\w+/=\s\\:,-]*)",
)
_KEY_LINES = re.compile(  # of a key whose beginning is not part of the text
    r"(?:^[ \t#*/\"']{0,80}[A-Za-z0-9+/]{60,76}(?:\\n)?[\"', +\\]{0,8}\n){2,}"
    r"(?:[ \t#*/\"']{0,80}[A-Za-z0-9+/]{1,76}={0,2}(?![^\s\"'\\]))?",
    re.MULTILINE,
)
_TOKEN_PART = re.compile(r"[^\s\"'`]*")
MASK = "***"
"""Stands for a private key or a token in a snippet."""
MAX_CHARS = 20_000_000  # longer documents are excluded
_INSPECTED_CHARS = 8000  # at the beginning of a document decide whether it is text
_ODD = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\ufffd]")
_MAX_ODD = 0.1  # largest fraction of control and replacement characters in a text
_FEW_ODD = 8  # such characters that every text may contain
GITIGNORE = ".gitignore"
MAX_GITIGNORE_BYTES = 100_000
"""A longer .gitignore file, whose patterns would take seconds, counts as one that ignores everything."""
_MAX_CONFIG = 20_000
_EXCLUDES_FILE = re.compile(r'^[ \t]*excludesfile[ \t]*=[ \t]*(?:"([^"\n]+)|([^#;\n]+))', re.IGNORECASE | re.MULTILINE)


class ExclusionReason(StrEnum):
    """Why a document is excluded, as written to the client's log."""

    LANGUAGE = "its language is excluded"
    SECRETS = "files of this kind usually contain secrets"
    PATTERN = "a pattern of the settings excludes it"
    IGNORED = "a .gitignore excludes it"
    GIANT = "it is longer than the limit"
    BINARY = "it is not text"


class Exclusion:
    """The exclusion rules of the settings and of git, for a workspace.

    The owner may replace settings and folders.
    """

    flavour = Path

    def __init__(self, settings: PrivacySettings, folders: Iterable[str] = ()) -> None:
        self.settings = settings
        self.set_folders(folders)

    def set_folders(self, folders: Iterable[str]) -> None:
        """Replaces the workspace's folders, given as URIs; those of other schemes than `file` are skipped."""
        paths = (local_path(uri, self.flavour) for uri in folders)
        self.roots = tuple(path for path in paths if path is not None)
        names = (folder.as_posix() for root in self.roots for folder in (root, link_target(root)))
        self._root_names = frozenset(map(folded, names))
        """Paths of the roots, also those that links lead to."""

    def folders_around(self, path: Path) -> list[Path]:
        """The folders of the workspace that a path is in, the innermost first. A workspace may have thousands."""
        return [folder for folder in path.parents if folded(folder.as_posix()) in self._root_names]

    def exclusion_reason(self, snapshot: Snapshot) -> ExclusionReason | None:
        """Why the model must not see this document, or None."""
        settings = self.settings
        if snapshot.language in settings.exclude_languages:
            return ExclusionReason.LANGUAGE
        if (by_path := self._uri_reason(snapshot.file_uri)) is not None:
            return by_path
        if len(snapshot.text) > MAX_CHARS:
            return ExclusionReason.GIANT
        if is_binary(snapshot.text):
            return ExclusionReason.BINARY
        is_ignored = settings.exclude_gitignored and self.is_ignored(snapshot.file_uri)
        return ExclusionReason.IGNORED if is_ignored else None

    def is_excluded(self, snapshot: Snapshot) -> bool:
        """Whether the model must not see this document."""
        return self.exclusion_reason(snapshot) is not None

    def path_reason(self, path: str, folders: Iterable[Path] = ()) -> ExclusionReason | None:
        """Why a file is excluded by its path, before it is read, or None.

        Patterns are relative to the root of the file system, and to each of the folders that the file is in. If it is
        in none, they are relative to every folder around the file, because one of them is that of its project.
        """
        # to match a path that no file has would take long
        if self.settings.exclude_secrets and (len(path) > MAX_LOCAL_PATH or is_secret(path)):
            return ExclusionReason.SECRETS
        patterns = self.settings.exclude_patterns
        if not patterns:
            return None
        text = path_bytes(path)
        around = {path_bytes(folder.as_posix().strip("/") + "/").lstrip("/") for folder in folders}
        starts = {len(start) for start in around if text.startswith(start)}
        lines = patterns if starts else tuple(map(anywhere, patterns))
        rules = (Rule(start, pattern) for pattern in compiled(lines) for start in {0, *starts})
        return ExclusionReason.PATTERN if is_excluded(text, rules) else None

    def _uri_reason(self, uri: str) -> ExclusionReason | None:
        """By the path of a URI; for a file on this machine also by the path that its links lead to."""
        path, local = path_of(uri), local_path(uri)
        if local is None:
            return self.path_reason(path)
        files = [local, link_target(local)]
        folders = [folder for file in files for folder in self.folders_around(file)]
        if self.settings.exclude_patterns:
            folders += filter(None, map(repository_around, files))
        spellings = dict.fromkeys([path, *(file.as_posix().lstrip("/") for file in files)])
        return next(filter(None, (self.path_reason(spelling, folders) for spelling in spellings)), None)

    def is_ignored(self, uri: str) -> bool:
        """Whether git ignores the file, or folder if a slash ends the URI, or the one that its links lead to.

        Workspace folders count as repositories do. Unlike git, this does not look up whether the file is tracked.
        """
        path, is_folder = local_path(uri, self.flavour), uri.endswith("/")
        if path is None:
            return False
        files = {path, link_target(path)} if len(path.parts) <= MAX_FOLDERS else ()
        return not files or any(self._is_ignored(file, is_folder=is_folder) for file in files)

    def _is_ignored(self, path: Path, *, is_folder: bool) -> bool:
        repository, folders = repository_around(path), self.folders_around(path)
        tops = [folder for folder in path.parents if folder == repository or folder in folders]
        if not tops:
            return False
        num_above = len(tops[-1].parts)
        rules = list[Rule]()
        for folder in path.parents[: len(path.parts) - num_above]:  # the nearest one is the most important
            start = len(_inside(folder, num_above, is_folder=True))
            for file in self._files(folder, repository):
                rules += (Rule(start, pattern) for pattern in self._patterns(file))
        return is_excluded(_inside(path, num_above, is_folder=is_folder), rules)

    def _files(self, folder: Path, repository: Path | None) -> Iterator[Path]:
        """The files with patterns for what is in a folder, the most important one first."""
        yield folder / GITIGNORE
        if folder == repository:
            yield _git_folder(Path(folder)) / "info/exclude"
            yield _excludes_file()

    def _patterns(self, path: Path) -> tuple[Pattern, ...]:
        """The patterns of a file; none if it is missing or cannot be read."""
        try:
            # git follows no link to a .gitignore file either, and a pipe would never end
            status = path.lstat() if path.name == GITIGNORE else path.stat()
            text = _read(path, MAX_GITIGNORE_BYTES + 1) if stat.S_ISREG(status.st_mode) else ""
        except (OSError, ValueError):  # ValueError: a NUL in the name
            return ()
        return compiled(("*",) if len(text) > MAX_GITIGNORE_BYTES else tuple(text.split("\n")))


class Cause(StrEnum):
    """The kind of reason why nothing is computed."""

    EXCLUDED = "excluded"  # the model must not see the document
    UNSUPPORTED = "unsupported"  # the model does not know the language
    NOT_REQUESTED = "not-requested"  # nothing is computed at this position, or the document is not open


@dataclass(frozen=True, slots=True)
class Eligibility:
    """The decision for a document, or for a cursor in it."""

    cause: Cause | None = None  # None where the model is used
    reason: str = ""  # without a full stop; empty where the model is used

    @property
    def is_served(self) -> bool:
        """Whether the model is used."""
        return self.cause is None

    @property
    def sentence(self) -> str:
        """The reason as a sentence; empty where the model is used."""
        if self.is_served:
            return ""
        # the reason against a language begins with the name of the model
        first = self.reason[:1] if self.cause is Cause.UNSUPPORTED else self.reason[:1].upper()
        return f"{first}{self.reason[1:]}."

    @classmethod
    def of_document(cls, snapshot: Snapshot, exclusion: Exclusion, language_problem: str = "") -> Self:
        """The decision for a document; `language_problem` is that of the model, see `ModelSpec.language_problem`."""
        if (reason := exclusion.exclusion_reason(snapshot)) is not None:
            return cls(Cause.EXCLUDED, f"this file is not sent to the model: {reason}")
        if language_problem:
            return cls(Cause.UNSUPPORTED, language_problem)
        return cls()

    def while_typing(self, snapshot: Snapshot, offset: int, trigger: str) -> Self:
        """The decision for an automatic completion at an offset of the document that this decision is about.

        `trigger` is the setting `completion.trigger`.
        """
        if not self.is_served:
            return self
        if trigger == "manual":
            return type(self)(Cause.NOT_REQUESTED, "completions come only on request (completion.trigger is manual)")
        if Cursor.at(snapshot.text, offset).is_deep_inside_word:
            return type(self)(Cause.NOT_REQUESTED, "the cursor is inside a word: nothing is suggested there")
        return self


def link_target(path: Path) -> Path:
    """Where the links of a path lead; the path itself where that is unknown."""
    with suppress(OSError, ValueError, RuntimeError):  # unreadable, a NUL, links in a circle
        return Path(path).resolve()
    return path


def repository_around(path: Path) -> Path | None:
    """The innermost folder around a path that is a git repository or one of its work trees."""
    return next((folder for folder in path.parents if _is_repository(Path(folder, ".git"))), None)


def _is_repository(path: Path) -> bool:
    with suppress(OSError, ValueError):  # unreadable, a NUL
        return path.is_file() or os.path.lexists(path / "HEAD")
    return False


@functools.lru_cache(maxsize=1024)
def is_secret(path: str) -> bool:
    """Whether a file with this path, or one that it is a backup of, usually contains secrets, in any spelling."""
    for _ in range(3):  # some clients encode a URI twice
        path = unquote(path)
    path = unicodedata.normalize("NFKC", path)
    if any(len(part) > _MAX_NAME for part in path.split("/")):
        return True
    path = _TRAILING.sub("", _INVISIBLE.sub("", path).replace("\\", "/").casefold())
    name = path.rstrip("/").rpartition("/")[2]
    bare = _BEHIND.sub("", _BEFORE.sub("", name))
    names = {name, _STREAM.sub("", name), bare, bare.lstrip(".")}  # the names of swap files begin with a dot
    files, paths = _secret_rules()
    return any(is_excluded(form, files) for form in map(path_bytes, names)) or is_excluded(path_bytes(path), paths)


@functools.cache
def _secret_rules() -> tuple[list[Rule], list[Rule]]:
    """The rules for names of files with secrets, and for their paths."""
    table = _secrets()
    combined = [f"{stem}.{ending}" for stem in table["file_stems"] for ending in table["file_endings"]]
    names, paths = compiled((*table["file_names"], *combined)), compiled(tuple(table["file_paths"]))
    return [Rule(0, pattern) for pattern in names], [Rule(0, pattern) for pattern in paths]


def mask_secrets(text: str) -> str:
    """Replaces private keys, also incomplete ones, and tokens of known forms by `***`."""
    for pattern in (_PRIVATE_KEY, _KEY_LINES):
        text = pattern.sub(MASK, text)
    lower = text.lower()
    for rule in _secrets()["rules"]:
        if any(word in lower for word in rule["keywords"]):
            text = _expression(rule["regex"]).sub(_masked, text)
    return text


def cut(text: str, length: int) -> str:
    """The beginning of a text, without a token at its end that is cut, which `mask_secrets` would not recognise."""
    head = text[: length + 1]
    token = _TOKEN_PART.match(head[::-1]) if len(head) > length else None
    return head[: len(head) - (token.end() if token is not None else 0)][:length]


@functools.cache
def _secrets() -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("secrets.toml").read_text(encoding="utf-8"))


_expression = functools.cache(re.compile)


def _masked(match: re.Match[str]) -> str:
    """The matched text with its last group masked; without groups all of it is masked."""
    start, end = (at - match.start() for at in match.span(match.lastindex or 0))
    return match[0][:start] + MASK + match[0][end:]


def local_path(uri: str, flavour: type[Path] = Path) -> Path | None:
    """The absolute path of a `file` URI in this system's flavour; None for any other URI, and where it is too long.

    On Windows `file:///c%3A/a` is `C:/a`, and `file://server/share/a` is `//server/share/a`.
    """
    scheme, host, text = split_uri(uri)
    host, text = unquote(host), unquote(text, errors="surrogateescape")  # names that are not UTF-8
    if len(text) > MAX_LOCAL_PATH:  # its folders would take quadratic memory
        return None
    path = flavour("/" + text.lstrip("/"))
    if isinstance(path, PureWindowsPath):
        drive = text.lstrip("/\\")
        path = flavour(drive if _DRIVE.match(drive) else f"//{host}{text}" if host else text)
    return path if scheme == "file" and path.is_absolute() else None


def is_binary(text: str) -> bool:
    """True for a NUL or too many control characters near the beginning."""
    start = text[:_INSPECTED_CHARS]
    return "\0" in start or len(_ODD.findall(start)) > max(_FEW_ODD, _MAX_ODD * len(start))


def _inside(path: Path, num_above: int, *, is_folder: bool) -> str:
    """The part of a path inside its outermost folder, as patterns see it; a folder's ends with a slash."""
    parts = path.parts[num_above:]
    return path_bytes("/".join(parts) + "/" * (is_folder and bool(parts)))


def _read(path: Path, size: int) -> str:
    """The beginning of a file; bytes that are not UTF-8 become surrogate escapes."""
    with path.open("rb") as file:
        return file.read(size).removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")


def _git_folder(repository: Path) -> Path:
    """The folder with `info/exclude`; a work tree and a submodule name another one in a file."""
    git = repository / ".git"
    with suppress(OSError, ValueError):
        if git.is_file():
            git = repository / _read(git, _MAX_CONFIG).removeprefix("gitdir:").strip()
        if (common := git / "commondir").is_file():
            git /= _read(common, _MAX_CONFIG).strip()
    return git


def _excludes_file() -> Path:
    """The file of the user's own patterns: `core.excludesFile` in git's own settings, or git's default."""
    with suppress(OSError, ValueError, RuntimeError):  # RuntimeError: no home
        git = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", "git")
        for path in (Path.home() / ".gitconfig", git / "config"):
            if path.is_file() and (lines := _EXCLUDES_FILE.findall(_read(path, _MAX_CONFIG))):
                return Path.home() / Path("".join(lines[-1]).strip()).expanduser()
        return git / "ignore"
    return Path(os.devnull)
