"""Python files in the folder that an editor opens are executed neither by a server nor by its child processes.

`soak/traps.py` has the commands and the servers of editors; here are the parts that it does not reach.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tiny_masked
from hostile import executed, make_hostile
from shared_daemon import TIMEOUT

from dg_lsp.backends.llamacpp.quantize import file_type, quantize
from dg_lsp.cli import models
from dg_lsp.gguf import read_header
from dg_lsp.models import packages

ROOT = Path(__file__).parents[2]


@pytest.fixture
def marks(tmp_path_factory):
    return tmp_path_factory.mktemp("marks") / "marks"


@pytest.fixture
def hostile_cwd(tmp_path, marks, monkeypatch):
    """The working directory of this process."""
    (tmp_path / "workspace").mkdir()
    make_hostile(tmp_path / "workspace", marks)
    monkeypatch.chdir(tmp_path / "workspace")
    yield
    assert executed(marks) == []


def test_python_m_executes_only_what_python_itself_imports_before(tmp_path, marks):
    """A `dg_lsp/` in the folder is executed by Python: this cannot be prevented."""
    names = ("json.py", "queue.py", "typing.py", "numpy/__init__.py", "llama_cpp/__init__.py")
    make_hostile(tmp_path, marks, names)
    command = [sys.executable, "-m", "dg_lsp", "models", "show"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr
    assert executed(marks) == []


def quantized(tmp_path):
    tiny_masked.write(tmp_path / "tiny.gguf", tiny_masked.masked("dream"))
    quantize(tmp_path / "tiny.gguf", tmp_path / "small.gguf", file_type("Q8_0"))
    return read_header(tmp_path / "small.gguf").tensors


def downloaded(tmp_path):
    """A wheel that pip downloads."""
    with zipfile.ZipFile(tmp_path / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in {
            "METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
            "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "RECORD": "",
        }.items():
            wheel.writestr(f"tiny-1.0.dist-info/{name}", text)
    options = ("--no-index", "--find-links", str(tmp_path), "--dest", str(tmp_path / "downloads"))
    packages.run_pip("download", "tiny", *options)
    return [*(tmp_path / "downloads").glob("tiny-*.whl")]


def check_of_the_runtime(_tmp_path):
    return models.supports_bidirectional() in (True, False)


def program_of_a_build(_tmp_path):
    """As pip and CMake are started."""
    return packages.run_program([sys.executable, "-c", "import json, queue"], lambda _: None) == ""


@pytest.mark.parametrize("has_run", [quantized, downloaded, check_of_the_runtime, program_of_a_build])
def test_a_child_process_executes_nothing_of_the_folder(hostile_cwd, tmp_path, has_run):
    assert has_run(tmp_path)
