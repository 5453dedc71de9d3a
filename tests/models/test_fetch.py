"""A preset is fetched from a hub on this machine, with everything that goes wrong on the way."""

import errno
import hashlib
import json
import shutil
import time
from types import SimpleNamespace

import hub_server
import pytest
from huggingface_hub import constants

from dg_lsp.errors import ModelDownloadError
from dg_lsp.models.download import RECORD, Fetch, Hub, fetched_path, read_record
from dg_lsp.models.presets import CHECKPOINT, DREAM, Preset

REPOSITORY = "somebody/Tiny-GGUF"
WEIGHTS = b"GGUF" + bytes(range(256)) * 400
FILES = {
    "Tiny-Q4_K_M.gguf": WEIGHTS,
    "Tiny-Q8_0.gguf": b"GGUF" + b"8" * 1000,
    "README.md": b"# Tiny\n",
}


def preset(**changes):
    facts = {
        "name": "tiny",
        "repository": REPOSITORY,
        "patterns": ("Tiny-Q4_K_M.gguf",),
        "quantization": "Q4_K_M",
        "size": len(WEIGHTS),
        "licence": "MIT",
        "family": DREAM,
        "note": "for tests",
        "sources": ("here",),
    }
    return Preset(**(facts | changes))


@pytest.fixture(autouse=True)
def hub(tmp_path, monkeypatch):
    """A hub with one repository; nobody waits between attempts."""
    monkeypatch.setenv("DG_LSP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)
    with hub_server.serving(REPOSITORY, dict(FILES)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


def fetch(which=None, look=lambda *_: None):
    which = which or preset()
    return Fetch(which, Hub(which.repository, which.revision)).run(look)


def parts(which):
    return sorted(which.folder.glob("*.part"))


def test_a_model_is_fetched_checked_and_found_again(hub):
    seen = []
    path = fetch(look=lambda *said: seen.append(said))
    assert path == preset().folder / "Tiny-Q4_K_M.gguf"
    assert path.read_bytes() == WEIGHTS
    assert fetched_path(preset()) == path
    record = read_record(preset())
    assert (record.repository, record.commit) == (REPOSITORY, hub_server.COMMIT)
    assert record.files[0].sha256 == hashlib.sha256(WEIGHTS).hexdigest()
    assert parts(preset()) == []
    done = [done for _, done, _ in seen]
    assert done == sorted(done)
    assert done[-1] == 2 * len(WEIGHTS)
    assert {total for *_, total in seen} == {2 * len(WEIGHTS)}
    assert {what for what, *_ in seen} == {"fetching Tiny-Q4_K_M.gguf", "checking Tiny-Q4_K_M.gguf"}


def test_what_is_there_is_not_fetched_again(hub):
    fetch()
    hub.requests.clear()
    assert fetch().read_bytes() == WEIGHTS
    assert hub.ranges() == []


def test_a_broken_connection_is_picked_up_where_it_was(hub):
    hub.cut_after = 40_000
    assert fetch().read_bytes() == WEIGHTS
    assert hub.ranges() == [None, "bytes=40000-", "bytes=80000-"]


def test_an_interrupted_fetch_goes_on_where_it_was(hub):
    def leave(what, done, total):
        if done >= 30_000:
            raise KeyboardInterrupt

    hub.cut_after = 30_000
    with pytest.raises(KeyboardInterrupt):
        fetch(look=leave)
    assert fetched_path(preset()) is None
    [part] = parts(preset())
    assert part.stat().st_size == 30_000
    hub.cut_after = None
    hub.requests.clear()
    assert fetch().read_bytes() == WEIGHTS
    assert hub.ranges() == ["bytes=30000-"]
    assert parts(preset()) == []


def test_a_network_that_is_gone_keeps_what_came(hub):
    hub.cut_after = 0
    with pytest.raises(ModelDownloadError, match=r"broke off.*run it again.*HF_ENDPOINT.*--from FOLDER"):
        fetch()
    hub.cut_after = None
    assert fetch().read_bytes() == WEIGHTS


def test_a_server_without_ranges_begins_anew(hub):
    which, seen = preset(), []
    which.folder.mkdir(parents=True)
    content = hashlib.sha256(WEIGHTS).hexdigest()[:12]
    (which.folder / f".Tiny-Q4_K_M.gguf.{content}.part").write_bytes(WEIGHTS[:5_000])
    hub.knows_ranges = False
    assert fetch(look=lambda _, done, __: seen.append(done)).read_bytes() == WEIGHTS
    assert seen[-1] == 2 * len(WEIGHTS)


def test_a_damaged_download_is_removed_and_said(hub):
    hub.damages = True
    with pytest.raises(ModelDownloadError, match=r"checksum differs.*run it again"):
        fetch()
    assert fetched_path(preset()) is None
    assert parts(preset()) == []
    hub.damages = False
    assert fetch().read_bytes() == WEIGHTS


def test_a_damaged_part_does_not_stay(hub):
    which = preset()
    which.folder.mkdir(parents=True)
    content = hashlib.sha256(WEIGHTS).hexdigest()[:12]
    part = which.folder / f".Tiny-Q4_K_M.gguf.{content}.part"
    part.write_bytes(b"x" * 100)
    with pytest.raises(ModelDownloadError, match="checksum differs"):
        fetch()
    part.write_bytes(b"x" * (len(WEIGHTS) + 1))  # longer than it may ever get
    assert fetch().read_bytes() == WEIGHTS


def test_the_checksum_of_this_release_goes_over_the_hubs(hub):
    known = preset(sha256=hashlib.sha256(WEIGHTS).hexdigest())
    hub.files["Tiny-Q4_K_M.gguf"] = WEIGHTS + b"new"
    with pytest.raises(ModelDownloadError, match=r"another file by now.*--revision main"):
        fetch(known)
    assert hub.ranges() == []
    hub.in_git.add("Tiny-Q4_K_M.gguf")  # a hub that does not say the checksum
    with pytest.raises(ModelDownloadError, match="checksum differs"):
        fetch(known)


def test_no_space_is_said_before_anything_is_fetched(hub, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(ModelDownloadError, match=r"needs 0 MB free and has 0: make room.*DG_LSP_DATA_DIR"):
        fetch()
    assert hub.ranges() == []


def test_a_disk_that_fills_up_is_not_taken_for_the_network(hub, monkeypatch):
    class Full:
        def __init__(self, file):
            self.file = file

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, _data):
            raise OSError(errno.ENOSPC, "No space left on device")

    append = Hub.append
    monkeypatch.setattr(
        Hub, "append", lambda self, file, commit, target, *rest: append(self, file, commit, Full(target), *rest)
    )
    with pytest.raises(ModelDownloadError, match="is full: make room there and run it again"):
        fetch()


def test_a_folder_that_cannot_be_written_to_is_said(tmp_path):
    (tmp_path / "data").write_text("a file")
    with pytest.raises(ModelDownloadError, match=r"writing to .* fails .*DG_LSP_DATA_DIR"):
        fetch()


def test_two_fetches_of_a_model_at_once_are_refused():
    which = preset()

    def again(*_):
        with pytest.raises(ModelDownloadError, match="by another dg-lsp: wait"):
            Fetch(which, Hub(REPOSITORY, "main")).run()

    assert fetch(which, again).read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        pytest.param((401, {"X-Error-Code": "GatedRepo"}), r"wants an agreement.*hf auth login", id="gated"),
        pytest.param((404, {"X-Error-Code": "RepoNotFound"}), "is not there, or not for everybody", id="no repository"),
        pytest.param((404, {"X-Error-Code": "RevisionNotFound"}), "no version main any more", id="no version"),
        pytest.param((500, {}), "status 500: try again later", id="hub is down"),
        pytest.param((200, {}), "no hub's: check HF_ENDPOINT", id="something else answers"),
    ],
)
def test_what_the_hub_refuses_is_said(hub, failure, message):
    hub.failure = failure
    with pytest.raises(ModelDownloadError, match=message):
        fetch()


def test_no_network_at_all_is_said(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelDownloadError, match=r"at http://127.0.0.1:9 broke off .*check the network"):
        fetch()


def test_a_file_that_is_not_there_names_those_that_are():
    with pytest.raises(ModelDownloadError, match=r"no file \*.Q5_K_M.gguf: .*Tiny-Q4_K_M.gguf, Tiny-Q8_0.gguf"):
        fetch(preset(patterns=("*.Q5_K_M.gguf",)))
    with pytest.raises(ModelDownloadError, match=r"2 files \*.gguf: choose one with --file"):
        fetch(preset(patterns=("*.gguf",)))


def test_a_path_that_leads_out_of_the_folder_is_refused(hub):
    hub.files["../out.gguf"] = WEIGHTS
    with pytest.raises(ModelDownloadError, match="no hub's"):
        fetch()


def test_a_checkpoint_is_a_folder_of_weights_and_what_belongs_to_them(hub):
    hub.files.clear()
    hub.files.update(
        {
            "config.json": b"{}",
            "model-00001-of-00002.safetensors": b"1" * 500,
            "model-00002-of-00002.safetensors": b"2" * 600,
            "modeling_tiny.py": b"import os",
            "onnx/config.json": b"{}",
        }
    )
    hub.in_git = {"config.json"}
    which = preset(patterns=CHECKPOINT)
    assert fetch(which) == which.folder
    assert fetched_path(which) == which.folder
    there = sorted(path.name for path in which.folder.iterdir() if not path.name.startswith("."))
    assert there == ["config.json", RECORD, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def test_a_small_file_that_was_damaged_is_found_by_gits_checksum(hub):
    hub.files["config.json"] = b'{"a": 1}'
    hub.files["model.safetensors"] = b"1" * 500
    hub.in_git = {"config.json"}
    hub.damages = True
    with pytest.raises(ModelDownloadError, match=r"config.json .*checksum differs"):
        fetch(preset(patterns=("*.json", "*.safetensors")))


@pytest.mark.parametrize("record", ["", "{}", "[]", '{"repository": "a", "commit": "b", "files": [{"odd": 1}]}'])
def test_a_record_that_makes_no_sense_is_as_none(record):
    fetch()
    (preset().folder / RECORD).write_text(record)
    assert fetched_path(preset()) is None


def test_a_file_that_was_cut_short_later_is_fetched_again(hub):
    path = fetch()
    path.write_bytes(WEIGHTS[:100])
    assert fetched_path(preset()) is None
    assert fetch().read_bytes() == WEIGHTS


def test_a_file_that_lies_there_already_is_taken_if_it_is_right(hub):
    which = preset()
    which.folder.mkdir(parents=True)
    (which.folder / "Tiny-Q4_K_M.gguf").write_bytes(WEIGHTS)
    assert fetch(which).read_bytes() == WEIGHTS
    assert hub.ranges() == []
    assert json.loads((which.folder / RECORD).read_text())["commit"] == hub_server.COMMIT


def test_offline_is_respected(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "is_offline_mode", lambda: True)
    with pytest.raises(ModelDownloadError, match=r"HF_HUB_OFFLINE is set.*--from FOLDER"):
        fetch()
