"""`python -m dg_lsp serve` in a process of its own, with the bundled model."""

import re
import signal

import pytest
from http_server import Client
from installation import PYTHON

SETTINGS = "[completion]\ndeadline_ms = 60000\nearly_stop_ms = 0\n"
"""Completions must not depend on the load of the machine."""
KEY = "the-key-of-this-test"
GAP = {
    "input_prefix": "class Basket:\n    def __init__(self, owner, items):\n        self.owner = owner\n",
    "prompt": "        self.items = ",
    "input_suffix": "\n\n    def total(self):\n        return sum(self.items)\n",
}


@pytest.fixture
def serve(launcher):
    """`serve()` -> a server process that has written `line`, and an HTTP client of it."""

    def call(line="ready after"):
        (launcher.directory / "dg-lsp.toml").write_text(SETTINGS)
        # with a key, all connections are one client, which shares its cached prompts
        process = launcher.launch([PYTHON, "-P", "-m", "dg_lsp", "serve", "--port", "0"], DG_LSP_API_KEY=KEY)
        process.wait_until(lambda: line in process.stderr)
        return process, Client(int(re.search(r"http://127\.0\.0\.1:(\d+)\n", process.stderr)[1]), KEY)

    return call


def test_the_bundled_model_completes_and_is_cached(serve):
    process, client = serve()
    first, again = (client.post("/infill", GAP).tree for _ in range(2))
    assert first["content"] == again["content"] != ""
    assert first["model"] == "dg-mini"
    assert again["timings"]["cache_n"] > again["timings"]["prompt_n"]
    body = {"prompt": GAP["input_prefix"] + GAP["prompt"], "suffix": GAP["input_suffix"]}
    [choice] = client.post("/v1/completions", body).tree["choices"]
    assert choice["text"] == first["content"]
    assert client.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}).status == 501
    process.process.terminate()
    assert process.wait_end() == -signal.SIGTERM
    assert re.fullmatch(r"dg-lsp: listening on \S+\ndg-lsp: dg-mini ready after \S+ s\n", process.stderr)
    assert process.messages == []


@pytest.mark.parametrize("line", ["listening on", "ready after"])
def test_ctrl_c_ends_the_server_before_and_after_the_model_loads(serve, line):
    process, _ = serve(line)
    process.process.send_signal(signal.SIGINT)
    assert process.wait_end() in (130, -signal.SIGINT)
    assert "Traceback" not in process.stderr
