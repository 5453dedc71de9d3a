"""transformers' own `serve` with a tiny DiffusionGemma behind the remote backend. Random weights answer noise."""

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from functools import partial

import pytest
from remote_models import remote_models

from dg_lsp.context.asking import Asking, Task
from dg_lsp.context.window import Prompt
from dg_lsp.errors import RemoteError

NEEDED = ("fastapi", "openai", "accelerate")
pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, NEEDED)), reason=f"transformers serve needs {', '.join(NEEDED)}"
)
START_SECONDS = 300
SUFFIX = "\n\n\ndef name():\n    pass\n"
PROMPT = Prompt("def area(w, h):\n    return ", SUFFIX, path="shapes.py", language="python")
CANVAS = 32
TEMPLATE = (
    "{{ bos_token }}{% for one in messages %}<|turn>{{ one['role'] }}\n{{ one['content'] }}<turn|>\n{% endfor %}"
    "<|turn>model\n<|channel>thought\n<channel|>"
)


@pytest.fixture(scope="module")
def served(tiny_checkpoint, tmp_path_factory):
    """Where it listens. It wants to know that there are no images, and how to write a chat."""
    folder = tmp_path_factory.mktemp("served") / "tiny"
    shutil.copytree(tiny_checkpoint, folder)
    _edit(folder / "tokenizer_config.json", processor_class="PreTrainedTokenizerFast", chat_template=TEMPLATE)
    _edit(folder / "generation_config.json", max_denoising_steps=4)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    code = "from transformers.cli.transformers import main; main()"
    options = ["serve", str(folder), "--device", "cpu", "--host", "127.0.0.1", "--port", str(port)]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HOME": str(folder.parent)}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *options], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait(process, f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _edit(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def _wait(process, url):
    deadline = time.monotonic() + START_SECONDS
    while True:
        assert process.poll() is None, "transformers serve has ended"
        assert time.monotonic() < deadline, "transformers serve does not get ready"
        try:
            with urllib.request.urlopen(url, timeout=10):
                return
        except OSError:
            time.sleep(0.2)


@pytest.fixture
def model_of(served):
    with remote_models() as call:
        yield partial(call, served)


def ask(model, one):
    return list(model.ask(one, time.monotonic() + START_SECONDS))[-1]


def test_a_completion_comes_canvas_by_canvas(model_of):
    model = model_of(api="completions", fim="none")
    said = ask(model, Asking(Task.FILL, PROMPT, CANVAS))
    assert len(said.texts) == 1
    assert said.model.endswith("tiny@main")
    assert said.prompt_tokens > 0
    assert said.output_tokens == 1  # it counts canvases
    assert ask(model, Asking(Task.FILL, PROMPT, 3 * CANVAS)).output_tokens <= 3


def test_a_suffix_is_no_gap_there(model_of):
    assert ask(model_of(api="completions"), Asking(Task.FILL, PROMPT, CANVAS)).texts[0].endswith(SUFFIX)


@pytest.mark.parametrize("task", [Task.FILL, Task.REWRITE, Task.CHAT])
def test_a_chat_is_answered(model_of, task):
    prompt = Prompt("", "\n", path="a.py", language="python", selection="x = 1\n", instruction="double it")
    said = ask(model_of(api="chat"), Asking(task, prompt, CANVAS, turns=(("user", "hello"),)))
    assert len(said.texts) == 1
    assert said.prompt_tokens > 0


def test_several_answers_are_not_given(model_of):
    assert len(ask(model_of(fim="none"), Asking(Task.FILL, PROMPT, CANVAS, num_answers=2)).texts) == 1


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        pytest.param({"api": "infill"}, "it has no /infill", id="no infill"),
        pytest.param({"model": "another"}, r"remote\.model", id="another model"),
        pytest.param({"extra": '{"top_k": 1}'}, "does not take the request", id="a field that it does not know"),
    ],
)
def test_what_it_cannot_do_is_told(model_of, settings, complaint):
    with pytest.raises(RemoteError, match=complaint):
        ask(model_of(**settings), Asking(Task.FILL, PROMPT, CANVAS))
