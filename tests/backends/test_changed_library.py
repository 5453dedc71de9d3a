"""Which llama.cpp a process loads. Each question is asked of a process of its own, since a process has only one."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dg_lsp.backends.llamacpp import runtime_check
from dg_lsp.errors import ModelRuntimeError
from dg_lsp.models.registry import BUNDLED
from dg_lsp.runtime import COMMAND, Runtime, find_runtime, installed_library, library_name

ROOT = Path(__file__).parents[2]
ASK = f"""
import json, os
from dg_lsp.backends.llamacpp import devices
from dg_lsp.backends.llamacpp.library import library
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.backends.llamacpp.runtime_check import supports_bidirectional
from dg_lsp.settings import RuntimeSettings
from pathlib import Path
loaded = library()
model = LlamaModel.load(Path({str(BUNDLED[0].path)!r}), RuntimeSettings(threads=1, gpu_layers=0))
answer = dict(
    kind=loaded.runtime.kind if loaded.runtime else "stock", note=loaded.note,
    supports_bidirectional=supports_bidirectional(),
    vocab_size=model.vocab_size, devices=len(devices()), trouble=loaded.log.trouble,
    inherited=os.environ.get("LLAMA_CPP_LIB_PATH"),
)
print(json.dumps(answer))
"""
needs_elf = pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="how ELF systems load libraries")
needs_runtime = pytest.mark.skipif(find_runtime().runtime is None, reason=f"no changed runtime here: run {COMMAND}")


def ask(folder="stock", code=ASK):
    environment = {**os.environ, "DG_LSP_RUNTIME": str(folder), "PYTHONPATH": str(ROOT)}
    environment.pop("LLAMA_CPP_LIB_PATH", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=ROOT, check=True
    )
    return json.loads(done.stdout)


@pytest.fixture
def unchanged(tmp_path):
    """A runtime with nothing in it: in front of the installed library, which does all the work."""
    here = installed_library()
    made = Runtime(tmp_path, "overlay", "", here.version, str(here.library), here.digest())
    libraries = here.library.parent
    command = [shutil.which("cc"), "-shared", "-o", str(made.library), "-x", "c", "/dev/null", "-x", "none"]
    command += ["-Wl,--no-as-needed", str(here.library), f"-Wl,-rpath,{libraries}"]
    subprocess.run(command, check=True)
    made.write()
    return made


def test_the_installed_library_is_loaded_as_it_is():
    answer = ask()
    assert (answer["kind"], answer["note"]) == ("stock", "DG_LSP_RUNTIME is set to stock")
    assert not answer["supports_bidirectional"], "the change is no longer needed: say so to people who build it"
    assert answer["devices"] >= 1
    assert answer["trouble"] == []


@needs_elf
def test_one_in_front_is_loaded_and_leaves_no_trace_in_the_environment(unchanged):
    answer = ask(unchanged.folder)
    assert (answer["kind"], answer["note"], answer["inherited"]) == ("overlay", "", None)
    stock = ask()
    assert (answer["vocab_size"], answer["devices"]) == (stock["vocab_size"], stock["devices"])
    assert not answer["supports_bidirectional"]


@needs_elf
def test_a_whole_one_is_loaded_from_its_own_folder(tmp_path):
    here = installed_library()
    for path in here.library.parent.iterdir():
        (tmp_path / path.name).symlink_to(path)
    Runtime(tmp_path, "whole", "cpu", here.version, "", "").write()
    answer = ask(tmp_path)
    assert (answer["kind"], answer["note"]) == ("whole", "")
    assert answer["devices"] >= 1


@needs_elf
def test_one_for_another_version_is_not_loaded(unchanged):
    replace(unchanged, version="0.3.1").write()
    answer = ask(unchanged.folder)
    assert answer["kind"] == "stock"
    assert "made for llama-cpp-python 0.3.1" in answer["note"]
    assert answer["vocab_size"] > 0


def test_one_that_the_system_cannot_load_does_not_keep_anybody_from_filling(tmp_path):
    here = installed_library()
    (tmp_path / library_name()).write_text("no library")
    Runtime(tmp_path, "overlay", "", here.version, str(here.library), here.digest()).write()
    answer = ask(tmp_path)
    assert answer["kind"] == "stock"
    assert f"run {COMMAND} again" in answer["note"]
    assert answer["vocab_size"] > 0


@needs_elf
def test_one_that_comes_too_late_is_told(unchanged):
    answer = ask(unchanged.folder, f"import llama_cpp{ASK}")
    assert (answer["kind"], answer["note"]) == ("stock", "llama_cpp was imported before dg-lsp")


@needs_runtime
def test_the_changed_one_lets_the_canvas_see_all_of_itself():
    answer = ask(find_runtime().runtime.folder)
    assert answer["supports_bidirectional"]
    assert answer["note"] == ""
    assert answer["trouble"] == []


def test_the_probe_answers_by_its_exit_code(unchanged):
    environment = {**os.environ, "DG_LSP_RUNTIME": "stock", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dg_lsp.backends.llamacpp.runtime_check"]
    assert subprocess.run(command, env=environment, check=False).returncode == runtime_check.NO
    replace(unchanged, version="0.3.1").write()
    environment["DG_LSP_RUNTIME"] = str(unchanged.folder)
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "made for llama-cpp-python 0.3.1" in refused.stderr


def test_a_diffusiongemma_without_it_names_the_command(monkeypatch):
    monkeypatch.setattr(runtime_check, "supports_bidirectional", lambda: False)
    with pytest.raises(ModelRuntimeError, match=r"big.gguf is a DiffusionGemma.*run: dg-lsp models build-runtime$"):
        runtime_check.require_runtime(Path("big.gguf"))
    monkeypatch.setattr(runtime_check, "supports_bidirectional", lambda: True)
    runtime_check.require_runtime(Path("big.gguf"))
