"""Which files of a workspace are excluded: the settings, and the files that git ignores."""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from dg_lsp.context.document import Snapshot
from dg_lsp.context.exclusion import (
    Exclusion,
    ExclusionReason,
    WorkspaceFolders,
    link_target,
    local_path,
    repository_around,
)
from dg_lsp.gitignore import MAX_FOLDERS, Pattern, Rule, compiled, is_excluded, path_bytes
from dg_lsp.settings import PrivacySettings

GITIGNORE = ".gitignore"
MAX_BYTES = 100_000
"""A longer .gitignore file, whose patterns would take seconds, counts as one that ignores everything."""
_MAX_CONFIG = 20_000
_EXCLUDES_FILE = re.compile(r'^[ \t]*excludesfile[ \t]*=[ \t]*"?([^"\n]+)', re.IGNORECASE | re.MULTILINE)


class WorkspaceExclusion(Exclusion):
    """Exclusion rules of one session: the settings, and the .gitignore files of repositories and workspace folders.

    The session replaces settings and folders. A .gitignore file is read again when it changes.
    """

    flavour = Path

    def __init__(self, settings: PrivacySettings, folders: Iterable[str] = ()) -> None:
        super().__init__(settings)
        self.set_folders(folders)

    def set_folders(self, folders: Iterable[str]) -> None:
        """Replaces the workspace's folders, given as URIs; those of other schemes than `file` are skipped."""
        found = (local_path(uri, self.flavour) for uri in folders)
        self.workspace = WorkspaceFolders(root for root in found if root is not None)
        self._known: dict[Path, tuple[int, tuple[Pattern, ...]]] = {}
        """Patterns of each .gitignore file, and its modification time in nanoseconds."""
        self._user_file = _excludes_file()

    @property
    def roots(self) -> tuple[Path, ...]:
        """The workspace's folders."""
        return self.workspace.roots

    def exclusion_reason(self, snapshot: Snapshot) -> ExclusionReason | None:
        """Why the model must not see this document, or None; also because git ignores its file."""
        reason = super().exclusion_reason(snapshot)
        if reason is None and self.settings.exclude_gitignored and self.is_ignored(snapshot.file_uri):
            return ExclusionReason.IGNORED
        return reason

    def is_ignored(self, uri: str) -> bool:
        """Whether git ignores the file, or folder if a slash ends the URI, or the one that its links lead to.

        Workspace folders count as repositories do. Unlike git, this does not look up whether the file is tracked.
        """
        path, is_folder = local_path(uri, self.flavour), uri.endswith("/")
        if path is None:
            return False
        if len(path.parts) > MAX_FOLDERS or self._is_ignored(path, is_folder=is_folder):
            return True
        target = link_target(path)
        return target != path and self._is_ignored(target, is_folder=is_folder)

    def _is_ignored(self, path: Path, *, is_folder: bool) -> bool:
        repository, folders = repository_around(path), self.workspace.around(path)
        tops = [one for one in path.parents if one == repository or one in folders]
        if not tops:
            return False
        num_above = len(tops[-1].parts)
        rules = list[Rule]()
        for folder in path.parents[: len(path.parts) - num_above]:  # the nearest one is the most important
            start = len(_inside(folder, num_above, is_folder=True))
            rules += (Rule(start, one) for name in self._files(folder, repository) for one in self._patterns(name))
        return is_excluded(_inside(path, num_above, is_folder=is_folder), rules)

    def _files(self, folder: Path, repository: Path | None) -> Iterator[Path]:
        """The files with patterns for what is in a folder, the most important one first."""
        yield folder / GITIGNORE
        if folder == repository:
            yield _git_folder(Path(folder)) / "info/exclude"
            yield self._user_file

    def _patterns(self, name: Path) -> tuple[Pattern, ...]:
        path = Path(name)
        try:
            # git follows no link to a .gitignore file either, and a pipe would never end
            status = path.lstat() if path.name == GITIGNORE else path.stat()
            if not stat.S_ISREG(status.st_mode):
                return ()
            modified = status.st_mtime_ns
            known = self._known.get(path)
            if known is None or known[0] != modified:
                text = _read(path, MAX_BYTES + 1)
                lines = ("*",) if len(text) > MAX_BYTES else tuple(text.split("\n"))
                known = self._known[path] = modified, compiled(lines)
        except (OSError, ValueError):  # missing, unreadable, or a NUL in the name
            return ()
        return known[1]


def _inside(path: Path, num_above: int, *, is_folder: bool) -> str:
    """The part of a path inside its outermost folder, as patterns see it; a folder's ends with a slash."""
    parts = path.parts[num_above:]
    return path_bytes("/".join(parts) + "/" * (is_folder and bool(parts)))


def _read(path: Path, size: int) -> str:
    """The beginning of a file; bytes that are not UTF-8 stay what they are."""
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
            if path.is_file() and (found := _EXCLUDES_FILE.findall(_read(path, _MAX_CONFIG))):
                return Path.home() / Path(found[-1].strip()).expanduser()
        return git / "ignore"
    return Path(os.devnull)
