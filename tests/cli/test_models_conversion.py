"""`dg-lsp models repack` and `dg-lsp models build-runtime`."""

import pytest
import tiny_diffusiongemma

from dg_lsp import runtime
from dg_lsp.cli import models
from dg_lsp.errors import ModelRuntimeError
from dg_lsp.gguf import read_header
from dg_lsp.models import build_runtime
from dg_lsp.runtime import Runtime


@pytest.fixture
def pull_request_gguf(tiny_repacked, tmp_path):
    return tiny_diffusiongemma.write_diffusion_gguf(tiny_repacked, tmp_path / "gemma.gguf")


def test_a_gguf_is_repacked_in_its_folder_without_the_number_of_its_shard(dg_lsp, pull_request_gguf, tmp_path):
    pull_request_gguf = pull_request_gguf.rename(tmp_path / "gemma-00001-of-00001.gguf")
    outcome = dg_lsp("models", "repack", pull_request_gguf)
    assert (outcome.code, outcome.out) == (0, f"{tmp_path / 'gemma-dg.gguf'}\n")
    assert outcome.err == "keep gemma-dg.selfcond.gguf beside it\n"
    assert read_header(tmp_path / "gemma-dg.gguf").architecture == "gemma4"
    assert read_header(tmp_path / "gemma-dg.selfcond.gguf").architecture == "dg-selfcond"
    again = dg_lsp("models", "repack", pull_request_gguf)
    assert again.code == 2
    assert "gemma-dg.gguf exists already: remove it, or pass another name with -o" in again.err


def test_a_checkpoint_is_repacked_to_the_working_directory(dg_lsp, tiny_checkpoint, tmp_path):
    outcome = dg_lsp("models", "repack", tiny_checkpoint)
    assert (outcome.code, outcome.out) == (0, "tiny-diffusiongemma-F32.gguf\n")
    outcome = dg_lsp("models", "repack", tiny_checkpoint, "--type", "bf16")
    assert (outcome.code, outcome.out) == (0, "tiny-diffusiongemma-BF16.gguf\n")
    header = read_header(tmp_path / "tiny-diffusiongemma-BF16.gguf")
    assert header.tensors["token_embd.weight"].kind.name == "BF16"


def test_all_sources_give_the_same_quantized_weights(dg_lsp, tiny_checkpoint, pull_request_gguf, tmp_path):
    made = []
    for source in (tiny_checkpoint, pull_request_gguf, tmp_path / "whole.gguf"):
        if source.name == "whole.gguf":
            assert dg_lsp("models", "repack", tiny_checkpoint, "-o", source).code == 0
        target = tmp_path / f"{len(made)}.gguf"
        outcome = dg_lsp("models", "repack", source, "--type", "Q8_0", "-o", target)
        assert (outcome.code, outcome.out) == (0, f"{target}\n")
        header = read_header(target)
        assert header.values["dg.self_conditioning"].read() == f"{target.stem}.selfcond.gguf"
        assert header.tensors["blk.0.ffn_up.weight"].kind.name == "Q8_0"
        made.append({name: header.rows(name).tobytes() for name in header.tensors})
    assert made[0] == made[1] == made[2]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    refused = dg_lsp("models", "repack", target, "--type", "Q4_0")
    assert refused.code == 2
    assert "is quantized already, and another type would lose accuracy: leave out --type" in refused.err


def test_wrong_use_is_reported_in_one_line(dg_lsp, tiny_repacked, tmp_path):
    (tmp_path / "empty").mkdir()
    for arguments, code, message in (
        (("none.gguf",), 3, "none.gguf does not exist"),
        ((tmp_path / "empty",), 2, "config.json cannot be read"),
        ((tiny_repacked,), 3, "is repacked already: use it as it is"),
        ((tiny_repacked, "--type", "Q9"), 2, "no type 'Q9' for weights"),
        ((tiny_repacked, "--type", "Q8_0", "-o", "a.bin"), 2, "let it end in .gguf"),
        ((tiny_repacked, "--type", "Q8_0", "-o", tmp_path / "none" / "a.gguf"), 2, "is not a folder"),
    ):
        outcome = dg_lsp("models", "repack", *arguments)
        assert (outcome.code, outcome.out) == (code, "")
        assert message in outcome.err
        assert outcome.err.count("\n") == 1


@pytest.fixture
def built(tmp_path, monkeypatch):
    """Replaces the build and records its options; `built.is_supported` is the result for the installed library."""

    class Built:
        is_supported = False
        result = Runtime(tmp_path / "runtime", "overlay", "", "0.3.36", "libllama.so", "00")

    def scripted(options, is_changed, show_step):
        assert is_changed is models._supports_bidirectional
        show_step("compiling", 0.5)
        show_step("testing it", None)
        Built.options.append(options)
        return Built.result

    monkeypatch.setattr(build_runtime, "build", scripted)
    monkeypatch.setattr(models, "_supports_bidirectional", lambda _folder: Built.is_supported)
    Built.options = []
    return Built


def test_the_folder_of_the_runtime_is_printed(dg_lsp, built, monkeypatch):
    outcome = dg_lsp("models", "build-runtime")
    assert outcome.code == 0
    assert outcome.out == f"{built.result.folder}\n"
    assert "built and tested in 0 s (one class" in outcome.err
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", "/mine")
    assert "will not be loaded: LLAMA_CPP_LIB_PATH" in dg_lsp("models", "build-runtime").err


def test_the_options_are_passed_on(dg_lsp, built, tmp_path):
    dg_lsp("models", "build-runtime", "--backend", "cuda", "--from", tmp_path)
    dg_lsp("models", "build-runtime", "--whole")
    assert built.options == [
        build_runtime.BuildOptions(tmp_path, "cuda", False),
        build_runtime.BuildOptions(None, None, True),
    ]


def test_nothing_is_built_if_the_library_or_its_source_needs_no_change(dg_lsp, built):
    built.is_supported = True
    outcome = dg_lsp("models", "build-runtime")
    assert (outcome.code, outcome.out, built.options) == (0, "", [])
    assert "nothing to build: llama-cpp-python" in outcome.err
    built.is_supported, built.result = False, None
    outcome = dg_lsp("models", "build-runtime")
    assert (outcome.code, outcome.out) == (0, "")
    assert "has the change already" in outcome.err


def test_a_missing_source_is_wrong_use(dg_lsp, built):
    outcome = dg_lsp("models", "build-runtime", "--from", "gone")
    assert outcome.code == 2
    assert "gone does not exist" in outcome.err


def test_the_installed_library_is_tested_in_a_child_process():
    assert models._supports_bidirectional(None) is False


def test_a_library_that_cannot_be_loaded_is_reported(tmp_path):
    installed = runtime.installed_library()
    (tmp_path / runtime.library_name()).write_text("no library")
    Runtime(tmp_path, "overlay", "", installed.version, str(installed.library), installed.digest()).write()
    with pytest.raises(ModelRuntimeError, match=r"the changed llama.cpp does not run: .*libllama"):
        models._supports_bidirectional(tmp_path)
