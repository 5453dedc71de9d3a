"""A folder that stands for a hub: a copy of its repositories, huggingface_hub's own cache, or just the files."""

from pathlib import Path
from typing import BinaryIO

from dg_lsp.errors import ModelDownloadError
from dg_lsp.models.digest import blocks
from dg_lsp.models.sources import Count, Listing, SourceFile


class Mirror:
    """One repository in a folder.

    Tried in turn: `FOLDER/OWNER/NAME`, `FOLDER/models--OWNER--NAME/snapshots/VERSION` as huggingface_hub keeps it,
    `FOLDER/NAME`, and the folder itself.
    """

    def __init__(self, folder: Path, repository: str, revision: str) -> None:
        """`revision` matters only where the folder keeps several versions."""
        self._folder = folder
        self._repository = repository
        self._revision = revision

    def listing(self) -> Listing:
        """The files of the repository; nobody says their checksums.

        Raises:
            ModelDownloadError: there is no such folder, or it cannot be read.
        """
        try:
            place = self._place()
            files = tuple(
                SourceFile(path.relative_to(place).as_posix(), path.stat().st_size)
                for path in sorted(place.rglob("*"))
                if path.is_file() and not any(part.startswith(".") for part in path.relative_to(place).parts)
            )
        except OSError as error:
            raise ModelDownloadError(
                f"cannot read {self._folder}: {error.strerror or error}; pass another --from FOLDER"
            ) from error
        return Listing("", files)

    def append(self, file: SourceFile, commit: str, target: BinaryIO, start: int, count: Count) -> None:  # noqa: ARG002
        """Copies the rest of the file.

        Raises:
            ModelDownloadError: the file can no longer be read.
            OSError: `target` cannot be written to.
        """
        try:
            source = (self._place() / file.path).open("rb")
        except OSError as error:
            raise ModelDownloadError(f"cannot read {file.path} in {self._folder}: {error.strerror or error}") from error
        with source:
            source.seek(start)
            for block in blocks(source):
                target.write(block)
                count(len(block))

    def _place(self) -> Path:
        cached = self._folder / f"models--{self._repository.replace('/', '--')}"
        version = cached / "refs" / self._revision
        commit = version.read_text(encoding="utf-8").strip() if version.is_file() else self._revision
        name = self._repository.rpartition("/")[2]
        places = (self._folder / self._repository, cached / "snapshots" / commit, self._folder / name)
        return next((place for place in places if place.is_dir()), self._folder)
