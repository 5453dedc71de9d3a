"""`dg-lsp models convert` and `dg-lsp models build-runtime`."""

import json
import os
import sys
from types import SimpleNamespace

import pytest
import tiny_diffusiongemma

from dg_lsp import runtime
from dg_lsp.cli import models
from dg_lsp.errors import ModelError
from dg_lsp.gguf import read_header
from dg_lsp.models import build_runtime, packages
from dg_lsp.models.checkpoint import name_of
from dg_lsp.runtime import Runtime


@pytest.fixture
def pull_request_gguf(tiny_repacked, tmp_path):
    return tiny_diffusiongemma.write_diffusion_gguf(tiny_repacked, tmp_path / "gemma.gguf")


@pytest.mark.parametrize(
    ("source", "options", "name", "kind"),
    [
        pytest.param("pull_request_gguf", (), "gemma-F32", "F32", id="a GGUF"),
        pytest.param("tiny_checkpoint", (), "tiny-diffusiongemma-F32", "F32", id="a checkpoint, unchanged"),
    ],
)
def test_a_diffusiongemma_is_converted_with_a_side_file(dg_lsp, request, capsys, tmp_path, source, options, name, kind):
    path = request.getfixturevalue(source)
    capsys.readouterr()  # the progress of making the source
    outcome = dg_lsp("models", "convert", path, *options)
    assert (outcome.code, outcome.out) == (0, f"{name}.gguf\n")
    assert outcome.err == f"keep {name}.selfcond.gguf beside it\n"
    header = read_header(tmp_path / f"{name}.gguf")
    assert (header.architecture, header.tensors["token_embd.weight"].kind.name) == ("gemma4", kind)
    assert read_header(tmp_path / f"{name}.selfcond.gguf").architecture == "dg-selfcond"
    error = dg_lsp("models", "convert", path, *options).error(2)
    assert f"{name}.gguf exists already: remove it, or pass another name with -o" in error


def test_quantized_weights_are_not_quantized_again(dg_lsp, tiny_checkpoint, tmp_path):
    target = tmp_path / "small.gguf"
    assert dg_lsp("models", "convert", tiny_checkpoint, "--type", "Q8_0", "-o", target).out == f"{target}\n"
    header = read_header(target)
    assert header.values["dg.self_conditioning"].read() == "small.selfcond.gguf"
    assert header.tensors["blk.0.ffn_up.weight"].kind.name == "Q8_0"
    quantized = tiny_diffusiongemma.write_diffusion_gguf(target, tmp_path / "quantized.gguf")
    error = dg_lsp("models", "convert", quantized, "--type", "Q4_0").error(2)
    assert "is quantized already, and another type would lose accuracy: leave out --type" in error


def test_wrong_use_is_reported_in_one_line(dg_lsp, tiny_repacked, tiny_checkpoint, tmp_path):
    (tmp_path / "empty").mkdir()
    for arguments, code, message in (
        (("none.gguf",), 3, "none.gguf does not exist"),
        (("x" * 300,), 3, "cannot be read: File name too long"),
        ((tmp_path / "empty",), 2, "config.json cannot be read"),
        ((tiny_repacked,), 3, "is converted already: use it as it is"),
        ((tiny_repacked, "--type", "Q9"), 2, "no type 'Q9' for weights"),
        ((tiny_checkpoint, "--type", "Q8_0", "-o", "a.bin"), 2, "let it end in .gguf"),
        ((tiny_checkpoint, "--type", "Q8_0", "-o", tmp_path / "none" / "a.gguf"), 2, "is not a folder"),
    ):
        assert message in dg_lsp("models", "convert", *arguments).error(code)


SCRIPT = """
import json, os, shutil, sys
import conversion
assert os.environ["HF_HUB_OFFLINE"] == "1"
source, _, target, _, kind = sys.argv[1:]
names = [name for name in os.listdir(source) if name.endswith(("config.json", ".py"))]
texts = {name: open(os.path.join(source, name)).read() for name in names}
with open(os.path.join(os.path.dirname(__file__), "seen.json"), "w") as file:
    seen = {name: json.loads(text) if text else None for name, text in texts.items()}
    json.dump({"folder": os.path.basename(source), **seen}, file)
print("INFO:hf-to-gguf:Loading", file=sys.stderr)
if kind == "f32":
    sys.exit("ERROR:hf-to-gguf:Model Odd is not supported")
print("Writing:   0%|", "Writing:  50%|##", sep="\\r", file=sys.stderr)
shutil.copy(os.path.join(source, "model.gguf"), target)
"""
REQUIREMENTS = {
    "requirements-convert_legacy_llama.txt": "numpy~=2.2.6\n\ntransformers==4.57.6\ngguf>=0.1.0\n",
    "requirements-convert_hf_to_gguf.txt": "-r ./other.txt\n--extra-index-url x\n## why\ntorch==2.11.0\n",
}


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Replaces llama.cpp's script and its packages; `script.calls` are those of pip."""
    version = runtime.installed_library().version
    script = SimpleNamespace(calls=[], seen=tmp_path / "data" / "conversion" / version / "seen.json")

    def unpack(_version, _given, folder, _show_step):
        files = {"convert_hf_to_gguf.py": SCRIPT, "conversion/__init__.py": ""}
        for name, text in (files | {f"requirements/{name}": text for name, text in REQUIREMENTS.items()}).items():
            path = folder / "llama.cpp" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder / "llama.cpp"

    def run(command, on_line=lambda _: None, environment=os.environ, run_program=packages.run_program):
        if "pip" not in command:
            return run_program(command, on_line, environment)
        script.calls.append(command[command.index("--python") : command.index("--disable-pip-version-check")])
        return ""

    monkeypatch.setattr(packages, "unpack_llama_cpp", unpack)
    monkeypatch.setattr(packages, "run_program", run)
    return script


@pytest.fixture
def checkpoint(tmp_path, tiny_repacked):
    """A checkpoint of another model, and the file that the replaced script makes of it."""
    folder = tmp_path / "Coder"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.gguf").write_bytes(tiny_repacked.read_bytes())
    return folder


def test_another_checkpoint_is_converted_by_llama_cpps_script(dg_lsp, script, checkpoint, tmp_path):
    outcome = dg_lsp("models", "convert", checkpoint)
    assert (outcome.code, outcome.out) == (0, "Coder.gguf\n"), outcome.err
    assert (tmp_path / "Coder.gguf").read_bytes() == (checkpoint / "model.gguf").read_bytes()
    ((_, python, *command),) = script.calls
    assert command == ["install", "torch==2.13.0", "numpy~=2.2.6", "transformers==4.57.6"]
    assert python.startswith(str(tmp_path / "data"))
    venv = script.seen.with_name("venv")
    assert sys.platform == "win32" or (venv / "bin/python").is_symlink(), "a copied Python may not find its libpython"
    outcome = dg_lsp("models", "convert", checkpoint, "--type", "q8_0")
    assert outcome.out == "Coder-Q8_0.gguf\n"
    assert read_header(tmp_path / "Coder-Q8_0.gguf").tensors["blk.0.ffn_up.weight"].kind.name == "Q8_0"
    assert len(script.calls) == 1, "the environment is made once"
    assert {path.name for path in tmp_path.iterdir()} == {"Coder", "Coder.gguf", "Coder-Q8_0.gguf", "data"}


def test_a_checkpoint_in_the_cache_of_hugging_face_has_the_name_of_its_repository(dg_lsp, script, checkpoint, tmp_path):
    snapshot = tmp_path / "models--someone--Stable-DiffCoder/snapshots/c0ffee"
    snapshot.parent.mkdir(parents=True)
    checkpoint.rename(snapshot)
    assert dg_lsp("models", "convert", snapshot).out == "Stable-DiffCoder.gguf\n"
    assert json.loads(script.seen.read_text())["folder"] == "Stable-DiffCoder"
    (snapshot / "Gemma.gguf").symlink_to("model.gguf")
    assert name_of(snapshot / "Gemma.gguf") == "Gemma.gguf", "not the checksum that it links to"


def test_a_failed_conversion_leaves_no_file(dg_lsp, script, checkpoint, tmp_path):
    error = dg_lsp("models", "convert", checkpoint, "--type", "F32").error(3)
    assert "cannot convert" in error
    assert "Model Odd is not supported; use a published GGUF" in error
    assert {path.name for path in tmp_path.iterdir()} == {"Coder", "data"}


def test_a_checkpoints_code_is_not_shown_to_the_script(dg_lsp, script, checkpoint):
    (checkpoint / "config.json").write_text('{"auto_map": {}, "architectures": ["StableDiffcoderForCausalLM"]}')
    (checkpoint / "tokenizer_config.json").write_text('{"auto_map": {}, "tokenizer_class": "DreamTokenizer"}')
    for name in ("odd.py", "Odder.PY", "oddest.so"):
        (checkpoint / name).write_text("")
    assert dg_lsp("models", "convert", checkpoint).code == 0
    assert json.loads(script.seen.read_text()) == {
        "folder": "Coder",
        "config.json": {"architectures": ["LlamaForCausalLM"]},
        "tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer"},
    }


@pytest.fixture
def built(tmp_path, monkeypatch):
    """Replaces the builds; `built.is_supported` is the result for the installed library."""
    overlay = Runtime(tmp_path / "runtime", "libllama.so", "00")
    built = SimpleNamespace(is_supported=False, calls=[], overlay=overlay)

    def build_overlay(source, is_changed, show_step):
        show_step("testing it", None)
        built.calls.append(("overlay", source, is_changed.args))
        return built.overlay

    def compile_wheel(backend, source, is_changed, show_step):
        built.calls.append((backend, source, is_changed.args))

    monkeypatch.setattr(build_runtime, "build_overlay", build_overlay)
    monkeypatch.setattr(build_runtime, "compile_wheel", compile_wheel)
    monkeypatch.setattr(build_runtime, "DEFAULT_BACKEND", "metal")
    monkeypatch.setattr(models, "supports_bidirectional", lambda *_: built.is_supported)
    return built


@pytest.mark.parametrize(
    ("options", "has_overlays", "kind", "message"),
    [
        pytest.param((), True, "overlay", "built and tested in 0 s (one class", id="one class of llama.cpp"),
        pytest.param(("--backend", "cuda"), True, "cuda", "for cuda)", id="all of llama.cpp for a backend"),
        pytest.param((), False, "metal", "for metal)", id="all of it where one class cannot be replaced"),
    ],
)
def test_a_runtime_is_built_and_its_folder_is_printed(dg_lsp, built, monkeypatch, options, has_overlays, kind, message):
    monkeypatch.setattr(build_runtime, "HAS_OVERLAYS", has_overlays)
    outcome = dg_lsp("models", "build-runtime", *options)
    folder = built.overlay.folder if kind == "overlay" else runtime.installed_library().library.parent
    assert (outcome.code, outcome.out) == (0, f"{folder}\n")
    assert message in outcome.err
    variable = runtime.RUNTIME_VARIABLE if kind == "overlay" else runtime.LLAMA_CPP_VARIABLE
    assert built.calls == [(kind, None, (variable,))]
    monkeypatch.setenv(runtime.LLAMA_CPP_VARIABLE, "/mine")
    assert "will not be loaded: LLAMA_CPP_LIB_PATH" in dg_lsp("models", "build-runtime", *options).err


def test_nothing_is_built_without_need(dg_lsp, built):
    built.is_supported = True
    outcome = dg_lsp("models", "build-runtime")
    assert (outcome.code, outcome.out) == (0, "")
    assert "nothing to build: llama-cpp-python" in outcome.err
    assert not built.calls


def test_a_library_is_tested_in_a_child_process_and_one_that_cannot_be_loaded_is_reported(tmp_path):
    assert models.supports_bidirectional() is False, "of the installed one"
    installed = runtime.installed_library()
    (tmp_path / runtime.OVERLAY_LIBRARY).write_text("no library")
    Runtime(tmp_path, str(installed.library), installed.digest()).write()
    with pytest.raises(ModelError, match=r"llama.cpp does not run: .*libllama"):
        models.supports_bidirectional(runtime.RUNTIME_VARIABLE, tmp_path)
