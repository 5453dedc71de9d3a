"""`dg-lsp fill` with a tiny random DiffusionGemma: the text is noise; shapes, freezing, stops and errors are real."""

import re
import shutil
from pathlib import Path

import pytest
import tiny_diffusiongemma as tiny
from changed_runtime import needs_runtime

from dg_lsp.backends.llamacpp import library


@pytest.fixture(autouse=True)
def settings(user_settings):
    user_settings("completion = { max_tokens = 16 }\nmodel = { num_slots = 1 }\n")


@pytest.mark.parametrize("name", [pytest.param("tiny_repacked", marks=needs_runtime), "tiny_checkpoint"])
def test_a_fill_runs_through_and_is_judged(dg_lsp, position, request, name):
    source = request.getfixturevalue(name)
    options = ("--json", "--deadline", "30000", "--threads", "1", "--candidates", "2")
    outcome = dg_lsp("fill", position, "--model", source, *options)
    assert outcome.code in (0, 1), outcome.err
    answer = outcome.json
    assert answer["model"] == source.stem
    assert answer["decoder"] in ("diffusion", "infill")
    assert answer["canvas_length"] in (16, 32)
    assert answer["steps"] >= 1
    assert answer["prompt_tokens"] > 0
    assert bool(answer["candidates"]) == (outcome.code == 0)
    assert answer["timings_ms"]["denoise"] > 0
    memory = r"dg-lsp: \S+ needs 0\.\d GB \(weights 0\.0, .*\), and this machine has [\d.]+ GB free\n"
    assert re.fullmatch(memory if source.is_dir() else "", outcome.err)


@needs_runtime
def test_without_its_side_file_or_with_another_it_is_refused(dg_lsp, position, tiny_repacked, tmp_path):
    sources = (tiny_repacked, tiny_repacked.with_name(f"{tiny_repacked.stem}.selfcond.gguf"))
    path, side = (Path(shutil.copy(source, tmp_path)) for source in sources)
    content = side.read_bytes()
    side.write_bytes(content[:-4] + b"\0\1\2\3")
    assert "tiny.selfcond.gguf is not the file that tiny.gguf" in dg_lsp("fill", position, "--model", path).error(3)
    side.unlink()
    assert "tiny.selfcond.gguf is missing" in dg_lsp("fill", position, "--model", path).error(3)


def test_an_unchanged_llama_cpp_is_refused_with_the_build_command(dg_lsp, position, tiny_repacked, monkeypatch):
    monkeypatch.setattr(library, "reduction_functions", lambda: None)
    assert "dg-lsp models build-runtime" in dg_lsp("fill", position, "--model", tiny_repacked).error(3)


def test_a_file_of_the_pull_requests_is_refused_with_the_convert_command(dg_lsp, position, tiny_repacked, tmp_path):
    raw = tiny.write_diffusion_gguf(tiny_repacked, tmp_path / "raw.gguf")
    message = dg_lsp("fill", position, "--model", raw).error(3)
    assert f"{raw} is not supported by this llama.cpp" in message
    assert "'diffusion-gemma'" in message
    assert "dg-lsp models convert" in message
