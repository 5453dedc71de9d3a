"""A model hub, asked through huggingface_hub: its endpoint, token, proxies and certificates are those the user set up.

Files come over plain HTTP in one piece, from wherever the last attempt broke off: huggingface_hub's own downloads start
over. Checks nothing; `fetch` does.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from dg_lsp import __version__
from dg_lsp.errors import ModelDownloadError
from dg_lsp.models.sources import Count, Listing, SourceFile

DEFAULT_ENDPOINT = "https://huggingface.co"
_COMMIT = re.compile(r"[0-9a-f]{40}")


class Hub:
    """One version of a repository on a hub."""

    def __init__(self, repository: str, revision: str) -> None:
        """`revision` is a branch, a tag or a commit. Asks nothing yet."""
        self._repository = repository
        self._revision = revision
        self._endpoint = (os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")

    def listing(self) -> Listing:
        """The files of the version, which a commit names from now on: a branch may move on meanwhile.

        Raises:
            ModelDownloadError: no network, no such repository or version, or one that wants an agreement first.
        """
        with self._explained():
            from huggingface_hub import HfApi
            from huggingface_hub.hf_api import RepoFile

            api = HfApi(endpoint=self._endpoint, library_name="dg-lsp", library_version=__version__)
            commit = self._revision
            if not _COMMIT.fullmatch(commit):
                commit = api.model_info(self._repository, revision=self._revision).sha or self._revision
            entries = api.list_repo_tree(self._repository, revision=commit, recursive=True)
            files = tuple(_described(entry) for entry in entries if isinstance(entry, RepoFile))
        return Listing(commit, files)

    def append(self, file: SourceFile, commit: str, target: BinaryIO, start: int, count: Count) -> None:
        """Continues the file where it broke off; short interruptions are bridged without anybody noticing.

        Raises:
            ModelDownloadError: the network failed for longer; what has come stays in `target`.
            OSError: `target` cannot be written to.
        """
        counted = _Counted(target, count)
        try:
            with self._explained():
                from huggingface_hub import hf_hub_url
                from huggingface_hub.file_download import http_get
                from huggingface_hub.utils import build_hf_headers

                url = hf_hub_url(self._repository, file.path, revision=commit, endpoint=self._endpoint)
                headers = build_hf_headers(library_name="dg-lsp", library_version=__version__)
                with _quiet():
                    http_get(
                        url,
                        counted,  # of a file it uses write, seek, tell and truncate
                        resume_size=start,
                        headers={**headers, "Accept-Encoding": "identity"},
                        expected_size=file.size,
                    )
        except ModelDownloadError:
            if counted.error is not None:
                raise counted.error from None
            raise

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Maps huggingface_hub's errors, and those of the HTTP client below it.

        Raises:
            ModelDownloadError: for each of them; the message says what to do.
        """
        try:
            from httpx2 import HTTPError
            from huggingface_hub import errors  # noqa: F401  # what comes next needs it
        except ImportError as error:
            raise ModelDownloadError(
                f"huggingface_hub is not installed as dg-lsp needs it ({error}): install dg-lsp again"
            ) from error
        try:
            yield
        except (HTTPError, OSError, ValueError, KeyError, TypeError) as error:
            raise self._error(_problem(error, self._revision)) from error

    def _error(self, problem: str) -> ModelDownloadError:
        return ModelDownloadError(f"{self._repository} at {self._endpoint} {problem}")


class _Counted:
    """A file that tells how much is written to it, and keeps its own errors apart from the network's."""

    def __init__(self, file: BinaryIO, count: Count) -> None:
        self._file = file
        self._count = count
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            written = self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self._count(written)
        return written

    def seek(self, position: int, whence: int = 0) -> int:
        return self._file.seek(position, whence)

    def tell(self) -> int:
        return self._file.tell()

    def truncate(self) -> int:
        """Drops what stands after the position: the server began anew."""
        position = self._file.tell()
        self._count(position - self._file.seek(0, os.SEEK_END))
        self._file.seek(position)
        return self._file.truncate()


def _described(entry: Any) -> SourceFile:
    """A `RepoFile`.

    Raises:
        ValueError: its path leads out of the repository.
    """
    path = PurePosixPath(entry.path)
    if path.is_absolute() or ".." in path.parts or "\\" in entry.path:
        raise ValueError(f"odd path {entry.path!r}")
    if entry.lfs is not None:
        return SourceFile(entry.path, entry.lfs.size, sha256=entry.lfs.sha256)
    return SourceFile(entry.path, entry.size, blob_id=entry.blob_id)


def _problem(error: Exception, revision: str) -> str:
    """What went wrong, and what to do about it; goes on from the repository's name."""
    from huggingface_hub import errors

    known = (
        (errors.GatedRepoError, "wants an agreement first: give it on its page, then run hf auth login"),
        (errors.RepositoryNotFoundError, "is not there, or not for everybody: check its name, or run hf auth login"),
        (errors.RevisionNotFoundError, f"has no version {revision} any more: pass --revision main"),
        (errors.EntryNotFoundError, f"has no such file in version {revision}: pass --revision main"),
        (errors.OfflineModeIsEnabled, "was not asked, for HF_HUB_OFFLINE is set: unset it, or pass --from FOLDER"),
        # a proxy's page, another service
        ((ValueError, KeyError, TypeError), "got an answer that is no hub's: check HF_ENDPOINT and the proxy"),
    )
    for kinds, problem in known:
        if isinstance(error, kinds):
            return problem
    if isinstance(error, errors.HfHubHTTPError):
        return f"cannot be had, status {error.response.status_code}: try again later, or set HF_ENDPOINT to a mirror"
    return (
        f"broke off ({_first_line(error)}): check the network and run it again, it goes on where it was; "
        "or set HF_ENDPOINT to a mirror, or pass --from FOLDER"
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without huggingface_hub's own bars and warnings: the command line has a bar, and errors are explained."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars, logging

    was_disabled, level = are_progress_bars_disabled(), logging.get_verbosity()
    if not was_disabled:
        disable_progress_bars()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if not was_disabled:
            enable_progress_bars()
