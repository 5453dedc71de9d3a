"""What a hub is asked, and with what."""

import hashlib
import io
import time

import hub_server
import pytest

from dg_lsp.errors import ModelDownloadError
from dg_lsp.models.download import Hub, RemoteFile

REPOSITORY = "somebody/Tiny-GGUF"
WEIGHTS = b"GGUF" + bytes(range(256)) * 40
FILE = RemoteFile("Tiny.gguf", len(WEIGHTS), sha256=hashlib.sha256(WEIGHTS).hexdigest())


@pytest.fixture(autouse=True)
def hub(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with hub_server.serving(REPOSITORY, {"Tiny.gguf": WEIGHTS, "config.json": b"{}"}) as server:
        server.in_git = {"config.json"}
        monkeypatch.setenv("HF_ENDPOINT", f"{server.endpoint}/")
        yield server


def test_a_branch_becomes_a_commit_and_its_files_are_described():
    listing = Hub(REPOSITORY, "main").listing()
    assert listing.commit == hub_server.COMMIT
    assert listing.files[0] == FILE
    assert listing.files[1].sha256 == ""
    assert listing.files[1].blob_id == "9e26dfeeb6e641a33dae4961196235bdb965b21b"  # git hash-object of {}


def test_a_commit_is_taken_at_its_word(hub):
    Hub(REPOSITORY, hub_server.COMMIT).listing()
    assert not [path for path, _ in hub.requests if "/revision/" in path]


def test_a_file_that_lies_elsewhere_is_continued_there_without_the_token(hub):
    hub.redirects = True
    target, came = io.BytesIO(WEIGHTS[:1000]), []
    target.seek(0, io.SEEK_END)
    Hub(REPOSITORY, "main").append(FILE, hub_server.COMMIT, target, 1000, came.append)
    assert target.getvalue() == WEIGHTS
    assert sum(came) == len(WEIGHTS) - 1000
    asked = {path.split("/")[1]: said for path, said in hub.requests}
    assert asked["elsewhere"] == "bytes=1000-"
    tokens = {path.split("/")[1]: token for path, token in hub.tokens}
    assert tokens == {"somebody": "Bearer hf_secret", "elsewhere": None}


def test_nobodys_bars_or_warnings_are_printed(hub, capfd):
    hub.cut_after = 0
    with pytest.raises(ModelDownloadError):
        Hub(REPOSITORY, "main").append(FILE, hub_server.COMMIT, io.BytesIO(), 0, lambda _: None)
    assert capfd.readouterr() == ("", "")


def test_the_libraries_bars_are_as_they_were():
    from huggingface_hub.utils import are_progress_bars_disabled

    before = are_progress_bars_disabled()
    Hub(REPOSITORY, "main").append(FILE, hub_server.COMMIT, io.BytesIO(), 0, lambda _: None)
    assert are_progress_bars_disabled() == before
