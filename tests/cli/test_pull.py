"""`dg-lsp models pull` from a local hub to a fill: tiny checkpoints, converted by llama.cpp's own script."""

import dataclasses
import os
import sys
from pathlib import Path
from unittest.mock import Mock

import presets
import pytest
import tiny_checkpoint
from filelock import FileLock

from dg_lsp.cli import models
from dg_lsp.errors import ModelError, ModelUnsupportedError
from dg_lsp.gguf import read_header
from dg_lsp.models import packages, registry
from dg_lsp.runtime import installed_library

TINY = presets.make(
    300_000,
    name="tiny-dream",
    repository="somebody/Tiny",
    patterns=("*.safetensors", "*.json", "*.txt", "*.py"),
    download_size=600_000,
    needs_conversion=True,
)
FILES = {}
on_posix = pytest.mark.skipif(sys.platform == "win32", reason="the Python that runs the script is a shell script")


@pytest.fixture(scope="session")
def converter(request):
    """A folder with llama.cpp's script, which runs in this Python instead of one with packages of its own.

    The source distribution comes from `SDIST` or the package index.
    """
    version = installed_library().version
    folder = Path(request.config.cache.mkdir(f"llama-cpp-{version}"))
    script = folder / f"llama_cpp_python-{version}/vendor/llama.cpp"
    if not (script / "convert_hf_to_gguf.py").is_file():
        given = os.environ.get("SDIST")
        try:
            packages.unpack_llama_cpp(version, Path(given) if given else None, folder)
        except ModelError as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(str(error))
    return script


@pytest.fixture
def data(tmp_path, converter):
    """The user's data folder, with the script. The tiny vocabulary has no known checksum."""
    environment = tmp_path / "data/conversion" / installed_library().version
    environment.mkdir(parents=True)
    for name in ("convert_hf_to_gguf.py", "conversion", "gguf-py"):
        (environment / name).symlink_to(converter / name)
    (environment / "sitecustomize.py").write_text(
        "import conversion.base\nconversion.base.TextModel.get_vocab_base_pre = lambda *_: 'qwen2'\n"
    )
    (environment / "sentencepiece.py").write_text("SentencePieceProcessor = None\n")
    python = environment / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return tmp_path / "data"


def publish(hub, monkeypatch):
    hub.files.update(tiny_checkpoint.published())
    monkeypatch.setattr(registry, "PRESETS", (TINY,))


@on_posix
def test_a_checkpoint_is_downloaded_converted_quantized_and_tested(dg_lsp, hub, data, monkeypatch, position):
    publish(hub, monkeypatch)
    name = TINY.name
    outcome = dg_lsp("models", "pull", name)
    ready = data / "models" / name / f"{name}.gguf"
    assert (outcome.code, outcome.out) == (0, f"{ready}\n"), outcome.err
    steps = [line for line in outcome.err.splitlines() if line.startswith("[")]
    assert steps == ["[1/3] download", "[2/3] convert", "[3/3] test"]
    assert read_header(ready).tensors["blk.0.ffn_up.weight"].kind.name == "Q8_0"
    assert {path.name for path in ready.parent.iterdir()} == {ready.name, registry.TESTED, ".cache"}
    assert not [path for path in hub.requests if path.endswith(".py")]
    assert dg_lsp("models", "show", name).facts["noise"] == "mask"
    assert dg_lsp("fill", position, "--model", name, "--json").json["model"] == name
    assert dg_lsp("models", "pull", name).err == ""


@on_posix
def test_an_interrupted_pull_goes_on_at_its_stage(dg_lsp, hub, data, monkeypatch, position):
    publish(hub, monkeypatch)
    folder = data / "models" / TINY.name

    def stages():
        outcome = dg_lsp("models", "pull", TINY.name)
        return outcome.code, [line.split()[1] for line in outcome.err.splitlines() if line.startswith("[")]

    with monkeypatch.context() as broken:
        broken.setattr(packages, "run_program", lambda *_, **_options: "no torch")
        assert stages() == (3, ["download", "convert"])
    [listed] = [model for model in dg_lsp("models", "list", "--json").json if model["name"] == "tiny-dream"]
    assert (listed["path"], listed["is_begun"]) == (None, True)
    problem = dg_lsp("fill", position, "--model", TINY.name).error(3)
    assert problem == "tiny-dream is fetched, but not converted: run dg-lsp models pull tiny-dream"
    hub.requests.clear()
    with monkeypatch.context() as broken:
        broken.setattr(models, "quantize", Mock(side_effect=ModelUnsupportedError("no")))
        assert stages() == (3, ["convert"])
    (folder / ".dg-lsp-killed").mkdir()
    assert stages() == (0, ["convert", "test"])
    assert hub.requests == []
    assert {path.name for path in folder.iterdir()} == {"tiny-dream.gguf", registry.TESTED}


@pytest.mark.parametrize("command", ["pull", "rm"])
def test_a_pull_of_another_process_is_left_alone(dg_lsp, hub, command):
    part = TINY.folder / ".cache/part"
    part.parent.mkdir(parents=True)
    part.touch()
    with FileLock(TINY.record_path.with_suffix(".lock")):
        outcome = dg_lsp("models", command, TINY.name)
    assert outcome.code == 3
    assert "tiny-dream is being pulled by another process: wait for it" in outcome.err
    assert (part.exists(), hub.requests) == (True, [])


def test_disk_and_memory_are_announced_before_the_download(dg_lsp, hub, monkeypatch):
    preset = dataclasses.replace(TINY, size=8_100_000_000, download_size=15_200_000_000_000_000)
    monkeypatch.setattr(registry, "PRESETS", (preset,))
    outcome = dg_lsp("models", "pull", TINY.name)
    assert (outcome.code, hub.requests) == (3, [])
    lines = outcome.err.splitlines()
    assert lines[1] == (
        "tiny-dream: download 15200000.0 GB, convert it to Q8_0, 8.1 GB, with Python packages of 1 GB or more, "
        "fetched once, test it with one fill"
    )
    assert lines[2].startswith("disk: 30400009.2 GB at most, ")
    assert "memory: 9.7 GB to use it, " in lines[2]
    assert "MB of free space and has" in lines[-1]
