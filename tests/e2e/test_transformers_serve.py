"""The remote backend over transformers' own `serve` with a tiny DiffusionGemma of random weights."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from contextlib import suppress
from functools import partial

import pytest
from gates import free_port, wait_until
from remote_models import last_answer, remote_models

from dg_lsp.backends.remote.dialects import RemoteQuery, RemoteTask
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
    """The address of the server. It needs a processor class without images, and a chat template."""
    folder = tmp_path_factory.mktemp("served") / "tiny"
    shutil.copytree(tiny_checkpoint, folder)
    _edit(folder / "tokenizer_config.json", processor_class="PreTrainedTokenizerFast", chat_template=TEMPLATE)
    # bytes are decoded as their names: transformers cannot stream a random text that is no UTF-8
    _edit(folder / "tokenizer.json", decoder={"type": "Fuse"})
    _edit(folder / "generation_config.json", max_denoising_steps=4)
    port = free_port()
    code = "from transformers.cli.transformers import main; main()"
    options = ["serve", str(folder), "--device", "cpu", "--host", "127.0.0.1", "--port", str(port)]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HOME": str(folder.parent)}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *options], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: _is_ready(process, f"{url}/health"), "not ready", seconds=START_SECONDS)
        yield url
    finally:
        process.kill()
        process.wait()


def _edit(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def _is_ready(process, url):
    assert process.poll() is None, "transformers serve has ended"
    with suppress(OSError), urllib.request.urlopen(url, timeout=10):
        return True
    return False


@pytest.fixture
def model_of(served):
    with remote_models() as call:
        yield partial(call, served)


def complete(model, max_tokens=CANVAS, **options):
    return last_answer(model, RemoteQuery(RemoteTask.FILL, PROMPT, max_tokens, **options), START_SECONDS)


def test_a_completion_has_text_and_counts(model_of):
    model = model_of(api="completions", fim="none")
    answer = complete(model)
    assert len(answer.texts) == 1
    assert answer.model.endswith("tiny@main")
    assert answer.prompt_tokens > 0
    assert answer.output_tokens == 1  # the server counts canvases
    assert complete(model, 3 * CANVAS).output_tokens <= 3


def test_the_server_appends_the_suffix_instead_of_infilling(model_of):
    assert complete(model_of(api="completions")).texts[0].endswith(SUFFIX)


@pytest.mark.parametrize("task", RemoteTask)
def test_a_chat_answers_each_task(model_of, task):
    prompt = Prompt("", "\n", path="a.py", language="python", selection="x = 1\n", instruction="double it")
    query = RemoteQuery(task, prompt, CANVAS, messages=(("user", "hello"),))
    answer = last_answer(model_of(api="chat"), query, START_SECONDS)
    assert len(answer.texts) == 1
    assert answer.prompt_tokens > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"api": "infill"}, "has no /infill", id="another API"),
        pytest.param({"model": "another"}, r"remote\.model", id="another model"),
        pytest.param({"extra": '{"top_k": 1}'}, "rejects the request", id="an unknown field"),
    ],
)
def test_an_unsupported_request_is_an_error(model_of, settings, message):
    with pytest.raises(RemoteError, match=message):
        complete(model_of(**settings))
