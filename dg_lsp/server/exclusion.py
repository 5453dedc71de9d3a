"""Which files of a workspace are excluded: the settings, and its .gitignore files."""

import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from pathspec import GitIgnoreSpec

from dg_lsp.context.document import Snapshot
from dg_lsp.context.exclusion import Exclusion, ExclusionReason, compiled, folded, local_path
from dg_lsp.context.syntax_tree import Inside, inside
from dg_lsp.settings import PrivacySettings

GITIGNORE = ".gitignore"
MAX_BYTES = 100_000
"""A longer .gitignore file, whose patterns would take seconds, counts as one that ignores everything."""
MAX_FOLDERS = 256
"""Most folders around a file whose rules are read: the time grows with their square. Deeper files count as ignored."""


def repositories_around(path: Path) -> list[str]:
    """URIs of the git repositories that a file or folder is in, the innermost first."""
    return [one.as_uri() for one in (path, *path.parents) if (one / ".git").exists()]


class WorkspaceExclusion:
    """Exclusion rules of one session: the settings, and the .gitignore files of the workspace's folders.

    The session replaces settings and folders. A .gitignore file is read again when it changes.
    """

    flavour = Path

    def __init__(self, settings: PrivacySettings, folders: Iterable[str] = ()) -> None:
        self.settings = settings
        self.set_folders(folders)

    def set_folders(self, folders: Iterable[str]) -> None:
        """Replaces the workspace's folders, given as URIs; those of other schemes than `file` are skipped."""
        found = (local_path(uri, self.flavour) for uri in folders)
        self.roots = tuple(root for root in found if root is not None)
        self._specs: dict[Path, tuple[int, GitIgnoreSpec]] = {}
        """Patterns of each .gitignore file, and its modification time in nanoseconds."""

    def exclusion_reason(self, snapshot: Snapshot) -> ExclusionReason | None:
        """Why the model must not see this document, or None."""
        reason = Exclusion(self.settings).reason(snapshot)
        if reason is None and self.settings.exclude_gitignored and self.is_ignored(snapshot.file_uri):
            return ExclusionReason.IGNORED
        return reason

    def is_excluded(self, snapshot: Snapshot) -> bool:
        """Whether the model must not see this document."""
        return self.exclusion_reason(snapshot) is not None

    def is_outside_code(self, snapshot: Snapshot, offset: int) -> bool:
        """Whether the settings exclude automatic completions in the comment or string around the cursor."""
        settings = self.settings
        if not (settings.exclude_comments or settings.exclude_strings):
            return False
        found = inside(snapshot.alone().text, offset - snapshot.num_before, snapshot.language)
        excluded = (settings.exclude_comments, Inside.COMMENT), (settings.exclude_strings, Inside.STRING)
        return any(is_set and found is kind for is_set, kind in excluded)

    def is_ignored(self, uri: str) -> bool:
        """Whether git ignores the file, or folder if a slash ends the URI, or the one that its links lead to."""
        path, is_folder = local_path(uri, self.flavour), uri.endswith("/")
        if path is None:
            return False
        if len(path.parts) > MAX_FOLDERS or self._is_ignored(path, self.roots, is_folder=is_folder):
            return True
        try:
            target, roots = Path(path).resolve(), tuple(Path(root).resolve() for root in self.roots)
        except (OSError, RuntimeError, ValueError):  # links in a circle, a NUL in the name
            return False
        return (target, roots) != (path, self.roots) and self._is_ignored(target, roots, is_folder=is_folder)

    def _is_ignored(self, path: Path, roots: Sequence[Path], *, is_folder: bool) -> bool:
        """The nearest .gitignore file with a matching pattern decides."""
        if (root := _root_of(path, roots)) is None:
            return False
        parts = [path, *path.parents]
        inside = parts[: parts.index(root)]
        folders = [*inside[1:], root]
        specs = [(one, spec) for one in folders if (spec := self._spec(one / GITIGNORE)) is not None]
        # from the outside in: nothing inside an ignored folder can be included again
        return any(_matches(part, specs, is_folder=is_folder or part != path) for part in reversed(inside))

    def _spec(self, name: Path) -> GitIgnoreSpec | None:
        path = Path(name)
        try:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):  # git reads no links either, and a pipe would never end
                return None
            modified = status.st_mtime_ns
            known = self._specs.get(path)
            if known is None or known[0] != modified:
                with path.open(encoding="utf-8", errors="replace") as file:
                    text = file.read(MAX_BYTES + 1)
                lines = ("*",) if len(text) > MAX_BYTES else tuple(text.splitlines())
                known = self._specs[path] = modified, compiled(lines)
        except (OSError, ValueError):  # missing, unreadable, or a NUL in the name
            return None
        return known[1]


def _matches(path: Path, specs: Sequence[tuple[Path, GitIgnoreSpec]], *, is_folder: bool) -> bool:
    """What the nearest folder above the path whose patterns match decides; the nearest one is the first."""
    above = [(folder, spec) for folder, spec in specs if len(folder.parts) < len(path.parts)]
    for folder, spec in above:
        inside = folded(path.relative_to(folder).as_posix())
        verdict = spec.check_file(inside + "/" * is_folder).include
        if verdict is not None:
            return verdict
    return False


def _root_of(path: Path, roots: Sequence[Path]) -> Path | None:
    """The folder above the path, as the path spells it, that is one of the roots."""
    names = {folded(root.as_posix()) for root in roots}
    return next((folder for folder in reversed(path.parents) if folded(folder.as_posix()) in names), None)
