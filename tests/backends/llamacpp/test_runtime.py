"""Which llama.cpp a process loads, and whether it is the changed one. A process loads only one."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dg_lsp.models.registry import BUNDLED
from dg_lsp.runtime import COMMAND, OVERLAY_LIBRARY, Runtime, find_runtime, installed_library

ROOT = Path(__file__).parents[3]
PROGRAM = f"""
import json, os
from dg_lsp.backends.llamacpp import devices
from dg_lsp.backends.llamacpp.library import library
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.backends.llamacpp.library import runs_diffusiongemma
from dg_lsp.settings import ModelSettings
from pathlib import Path
loaded = library()
model = LlamaModel(Path({str(BUNDLED[0].path)!r}), ModelSettings(threads=1, gpu_layers=0))
print(json.dumps(dict(
    kind="overlay" if loaded.runtime else "stock", note=loaded.note,
    runs_diffusiongemma=runs_diffusiongemma(), vocab_size=model.vocab_size, devices=len(devices()),
    inherited=os.environ.get("LLAMA_CPP_LIB_PATH"),
)))
"""
needs_elf = pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="how ELF systems load libraries")
needs_runtime = pytest.mark.skipif(find_runtime().runtime is None, reason=f"no changed runtime here: run {COMMAND}")


def loaded_by(folder="stock", program=PROGRAM):
    command, environment = [sys.executable, "-c", program], {**os.environ, "DG_LSP_RUNTIME": str(folder)}
    environment.pop("LLAMA_CPP_LIB_PATH", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT, check=True)
    return json.loads(done.stdout)


@pytest.fixture
def unchanged(tmp_path):
    """An empty runtime in front of the installed library."""
    here = installed_library()
    made = Runtime(tmp_path, str(here.library), here.digest())
    command = [shutil.which("cc"), "-shared", "-o", str(made.library), "-x", "c", "/dev/null", "-x", "none"]
    command += ["-Wl,--no-as-needed", str(here.library), f"-Wl,-rpath,{here.library.parent}"]
    subprocess.run(command, check=True)
    made.write()
    return made


@needs_elf
def test_overlay_or_the_installed_library_is_loaded_and_not_inherited_by_child_processes(unchanged):
    overlay, stock = loaded_by(unchanged.folder), loaded_by()
    assert (overlay["kind"], overlay["note"], overlay["inherited"]) == ("overlay", "", None)
    assert (stock["kind"], stock["note"]) == ("stock", "DG_LSP_RUNTIME is set to stock")
    assert (overlay["vocab_size"], overlay["devices"]) == (stock["vocab_size"], stock["devices"])
    assert stock["devices"] >= 1
    assert not (overlay["runs_diffusiongemma"] or stock["runs_diffusiongemma"])


@needs_elf
def test_runtime_of_another_library_leaves_the_installed_library(unchanged):
    replace(unchanged, installed_sha256="0").write()
    answer = loaded_by(unchanged.folder)
    assert answer["kind"] == "stock"
    assert "made for another llama-cpp-python" in answer["note"]
    assert answer["vocab_size"] > 0


@needs_elf
def test_runtime_that_is_damaged_is_an_error_that_names_its_command(unchanged):
    (unchanged.folder / OVERLAY_LIBRARY).write_text("no library")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        loaded_by(unchanged.folder)
    message = failed.value.stderr.splitlines()[-1]
    assert message.startswith("dg_lsp.errors.BackendError: llama.cpp cannot be loaded (")
    assert message.endswith(f"run {COMMAND} again")


@needs_runtime
def test_changed_runtime_runs_diffusiongemma_canvases():
    answer = loaded_by(find_runtime().runtime.folder)
    assert (answer["runs_diffusiongemma"], answer["note"]) == (True, "")
