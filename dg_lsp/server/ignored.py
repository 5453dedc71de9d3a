"""What the .gitignore files of a workspace leave out. Reads each file once, and again when it has changed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

from dg_lsp.context.exclusion import path_of

NAME = ".gitignore"


@dataclass(frozen=True, slots=True)
class _Read:
    """One file's patterns, as of a time in nanoseconds."""

    changed: int
    spec: GitIgnoreSpec


class Ignored:
    """The files of some folders, each a root of its own."""

    def __init__(self, roots: Iterable[str] = ()) -> None:
        """`roots` are file URIs."""
        self.roots: Sequence[Path] = tuple(Path("/" + path_of(uri)) for uri in roots if uri.startswith("file:"))
        self._read: dict[Path, _Read] = {}

    def has(self, uri: str) -> bool:
        """Whether a file is ignored: the .gitignore nearest to it that says anything decides."""
        path = Path("/" + path_of(uri))
        root = next((root for root in self.roots if path.is_relative_to(root)), None)
        if root is None or path == root:
            return False
        # an ignored folder hides what is in it, whatever a file further in says
        steps = [path, *path.parents]
        inside = steps[: steps.index(root)]
        return any(self._is_named(step, root, is_folder=step != path) for step in reversed(inside))

    def _is_named(self, path: Path, root: Path, *, is_folder: bool) -> bool:
        for folder in path.parents:
            spec = self._spec(folder / NAME)
            if spec is not None:
                shown = path.relative_to(folder).as_posix() + ("/" if is_folder else "")
                verdict = spec.check_file(shown).include
                if verdict is not None:
                    return verdict
            if folder == root:
                break
        return False

    def _spec(self, path: Path) -> GitIgnoreSpec | None:
        try:
            changed = path.stat().st_mtime_ns
            known = self._read.get(path)
            if known is None or known.changed != changed:
                lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
                known = self._read[path] = _Read(changed, GitIgnoreSpec.from_lines(lines))
        except (OSError, ValueError):  # not there, not readable, or patterns that mean nothing
            return None
        return known.spec
