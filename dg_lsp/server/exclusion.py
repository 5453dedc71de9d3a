"""Exclusion rules of one session: the settings, and the .gitignore files of the workspace's folders."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

from dg_lsp.context.document import Snapshot
from dg_lsp.context.exclusion import Exclusion, ExclusionReason, path_of
from dg_lsp.settings import PrivacySettings

NAME = ".gitignore"


@dataclass(frozen=True, slots=True)
class _GitignoreFile:
    """The patterns of one file, and its modification time in nanoseconds."""

    modified: int
    spec: GitIgnoreSpec


class GitignoreFiles:
    """The .gitignore files of some folders, read again when they change."""

    def __init__(self, folders: Iterable[str] = ()) -> None:
        """`folders` are URIs; those of other schemes than `file` are skipped."""
        self.roots: tuple[Path, ...] = tuple(Path("/" + path_of(uri)) for uri in folders if uri.startswith("file:"))
        self._files: dict[Path, _GitignoreFile] = {}

    def is_ignored(self, uri: str) -> bool:
        """Whether git ignores the file: the nearest .gitignore file with a matching pattern decides."""
        path = Path("/" + path_of(uri))
        root = next((root for root in self.roots if path.is_relative_to(root)), None)
        if root is None or path == root:
            return False
        # from the outside in: nothing inside an ignored folder can be included again
        parts = [path, *path.parents]
        inside = parts[: parts.index(root)]
        return any(self._matches(part, root, is_folder=part != path) for part in reversed(inside))

    def _matches(self, path: Path, root: Path, *, is_folder: bool) -> bool:
        for folder in path.parents:
            spec = self._spec(folder / NAME)
            if spec is not None:
                relative = path.relative_to(folder).as_posix() + ("/" if is_folder else "")
                verdict = spec.check_file(relative).include
                if verdict is not None:
                    return verdict
            if folder == root:
                break
        return False

    def _spec(self, path: Path) -> GitIgnoreSpec | None:
        try:
            modified = path.stat().st_mtime_ns
            known = self._files.get(path)
            if known is None or known.modified != modified:
                lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
                known = self._files[path] = _GitignoreFile(modified, GitIgnoreSpec.from_lines(lines))
        except (OSError, ValueError):  # missing, unreadable, or invalid patterns
            return None
        return known.spec


class WorkspaceExclusion:
    """The rules as they are now; the session replaces the settings and the folders."""

    def __init__(self, settings: PrivacySettings) -> None:
        self.settings = settings
        self.gitignore = GitignoreFiles()

    def set_folders(self, folders: Iterable[str]) -> None:
        """Replaces the workspace's folders, given as URIs."""
        self.gitignore = GitignoreFiles(folders)

    @property
    def roots(self) -> tuple[Path, ...]:
        """The workspace's folders on this machine."""
        return self.gitignore.roots

    def exclusion_reason(self, snapshot: Snapshot) -> ExclusionReason | None:
        """Why the model must not see this document, or None."""
        reason = Exclusion(self.settings).reason(snapshot)
        if reason is None and self.settings.exclude_gitignored and self.gitignore.is_ignored(snapshot.uri):
            return ExclusionReason.IGNORED
        return reason
