"""A model is opened in a child process first. The models are tiny and random, some of them damaged."""

import json
import os
import shutil
import signal
import subprocess
import sys
from unittest.mock import Mock

import pytest
import tiny_masked
import tiny_vocabulary

from dg_lsp.backends import transformers
from dg_lsp.backends.llamacpp.library import library
from dg_lsp.cli import loading, trial
from dg_lsp.errors import ModelError
from dg_lsp.settings import ModelSettings, Settings


@pytest.fixture(autouse=True)
def without_trials():
    """Here the models are tested."""


@pytest.fixture
def children(monkeypatch):
    """Counts the children; they run."""
    run = Mock(wraps=subprocess.run)
    monkeypatch.setattr(trial.subprocess, "run", run)
    return run


@pytest.fixture
def model(tmp_path):
    return tiny_masked.write(tmp_path / "Model.gguf", tiny_masked.make("qwen2"))


@pytest.fixture
def folder(tiny_checkpoint, tmp_path):
    return shutil.copytree(tiny_checkpoint, tmp_path / "copied")


def show(dg_lsp, path, code=0):
    outcome = dg_lsp("models", "show", path)
    assert outcome.code == code, outcome
    return outcome


def test_a_file_is_tested_once_until_it_changes(dg_lsp, model, children):
    show(dg_lsp, "dg-mini")
    show(dg_lsp, model)
    show(dg_lsp, model)
    assert children.call_count == 1, "the bundled model needs no test"
    tiny_masked.write(model, tiny_masked.make("qwen2", seed=1))
    show(dg_lsp, model)
    assert children.call_count == 2


def test_a_file_that_ends_its_process_is_refused_each_time(dg_lsp, model, children):
    tiny_masked.write(model, tiny_masked.make("qwen3moe", used_experts=9))
    for _ in range(2):
        message = show(dg_lsp, model, code=3).error(3)
        assert "Model.gguf ends its process (SIGABRT); it is damaged, or made to do harm" in message
    assert children.call_count == 2


def test_a_file_whose_test_the_system_ends_is_not_called_damaged(dg_lsp, model, monkeypatch):
    killed = subprocess.CompletedProcess([], -signal.SIGKILL, b"")
    monkeypatch.setattr(trial.subprocess, "run", lambda *_, **__: killed)
    assert "ends its process (SIGKILL); memory may be short: close" in show(dg_lsp, model, code=3).error(3)


def test_a_vocabulary_that_ends_the_process_at_some_text_is_refused(dg_lsp, tmp_path, monkeypatch):
    path, sentencepiece = tmp_path / "Model.gguf", tiny_vocabulary.Model(("<s>",), kind="sentencepiece")
    assert "Model" in show(dg_lsp, tiny_vocabulary.write(path, sentencepiece)).out
    tiny_vocabulary.write(path, sentencepiece, tokenizer__ggml__model="t5")
    assert "has a tokenizer of the kind 't5', which dg-lsp does not support" in show(dg_lsp, path, code=3).error(3)
    tokens = [token for token in tiny_vocabulary.OWN["sentencepiece"] if token != "<0xC3>"]  # the first byte of é
    monkeypatch.setitem(tiny_vocabulary.OWN, "sentencepiece", tokens)
    tiny_vocabulary.write(path, sentencepiece)
    assert "has no token for the byte 0xC3" in show(dg_lsp, path, code=3).error(3)


def test_a_tokenizer_that_fails_beyond_ascii_is_refused(dg_lsp, folder):
    tree = json.loads((folder / "tokenizer.json").read_text())
    tree["model"]["unk_token"] = "<none>"
    tree["model"]["vocab"]["<renamed>"] = tree["model"]["vocab"].pop("<0xC3>")
    (folder / "tokenizer.json").write_text(json.dumps(tree))
    assert "the text cannot be tokenized" in show(dg_lsp, folder, code=3).error(3)


def test_a_checkpoint_is_tested_once_until_one_of_its_files_changes(dg_lsp, folder, monkeypatch):
    monkeypatch.setattr(trial, "_test_in_child", test := Mock())
    os.mkfifo(folder / "pipe.json")
    (folder / "loop.json").symlink_to("loop.json")
    assert {"checkpoint of 0.00 B weights in float32", "uniform", "instruct"} < {*show(dg_lsp, folder).facts.values()}
    show(dg_lsp, folder)
    assert test.call_count == 1
    os.utime(folder / "config.json")
    show(dg_lsp, folder)
    assert test.call_count == 2


def test_weights_that_are_not_numbers_are_refused(dg_lsp, model):
    tiny = tiny_masked.make("qwen2")
    tiny.tensors["output.weight"][3, 3] = float("nan")
    tiny_masked.write(model, tiny)
    assert "cannot be loaded: " in show(dg_lsp, model, code=3).error(3)


def test_a_test_that_does_not_end_is_stopped(dg_lsp, model, monkeypatch):
    monkeypatch.setattr(trial, "_SECONDS", 0.01)
    assert "Model.gguf is not open after 0 s in a test process" in show(dg_lsp, model, code=3).error(3)


@pytest.mark.parametrize(
    ("owner", "name", "is_before"),
    [
        pytest.param(trial.subprocess, "run", False, id="while it is tested"),
        pytest.param(loading, "load_file", True, id="before it is opened"),
        pytest.param(loading, "load_file", False, id="after it was opened"),
    ],
)
def test_a_file_that_replaces_another_one_after_its_test_is_not_opened(
    dg_lsp, model, monkeypatch, tmp_path, owner, name, is_before
):
    broken = tiny_masked.write(tmp_path / "broken", tiny_masked.make("qwen3moe", used_experts=9))
    call = getattr(owner, name)

    def replace_meanwhile(*arguments, **options):
        result = None if is_before else call(*arguments, **options)
        broken.replace(model)  # llama.cpp would end this process
        return call(*arguments, **options) if is_before else result

    monkeypatch.setattr(owner, name, replace_meanwhile)
    message = show(dg_lsp, model, code=3).error(3)
    assert "Model.gguf was replaced while it was tested or opened: try it again" in message


def test_a_checkpoint_that_is_changed_after_its_test_is_not_opened(folder, monkeypatch):
    monkeypatch.setattr(trial, "_test_in_child", lambda *_: None)
    opened = Mock()

    def open_checkpoint(*_):
        (folder / "generation_config.json").write_text("{}")
        return opened

    monkeypatch.setattr(transformers, "open_checkpoint", open_checkpoint)
    with pytest.raises(ModelError, match="copied was replaced while it was tested or opened"):
        loading.open_local(Settings(model=ModelSettings(name=str(folder))))
    opened.close.assert_called_once()


def test_text_of_a_file_does_not_control_the_terminal(dg_lsp, tmp_path):
    path = tiny_masked.write(tmp_path / "M\x1b[2J.gguf", tiny_masked.make("qwen2"), name="Ev\x1b]0;il\nname\u202e")
    shown = show(dg_lsp, path).out
    assert "general.name = Ev\\x1b]0;il\\nname\\u202e" in shown
    assert all(character.isprintable() or character == "\n" for character in shown)
    path.write_bytes(b"no model")
    assert "M\\x1b[2J.gguf is not a GGUF file" in show(dg_lsp, path, code=3).error(3)


@pytest.mark.skipif(sys.platform == "win32", reason="llama.cpp attaches no debugger there")
def test_llama_cpp_attaches_no_debugger():
    library()
    assert os.environ["GGML_NO_BACKTRACE"] == "1"
