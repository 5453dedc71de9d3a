"""`dg-lsp fill` with a tiny random DiffusionGemma: the text is noise; shapes, freezing, stops and errors are real."""

import shutil
from pathlib import Path

import pytest
import tiny_diffusiongemma as tiny

from dg_lsp.backends.llamacpp import diffusiongemma

BUFFER = "def total(items):\n    result = 0\n    for item in items:\n        result += \n    return result\n"
QUICK = ("--json", "--deadline", "30000", "--threads", "1")

needs_runtime = pytest.mark.skipif(
    not diffusiongemma.supports_bidirectional(),
    reason="llama.cpp as installed; make the changed one with: dg-lsp models build-runtime",
)


@pytest.fixture
def hole(tmp_path):
    path = tmp_path / "hole.py"
    path.write_text(BUFFER)
    (tmp_path / "dg-lsp.toml").write_text("completion = { max_tokens = 16 }\nmodel = { num_slots = 1 }\n")
    return f"{path}:4"


@pytest.fixture
def model(tiny_repacked, tmp_path):
    """A copy of its own to be damaged, with its side file."""
    side = tiny_repacked.with_name(tiny_repacked.stem + ".selfcond.gguf")
    return tuple(Path(shutil.copy(path, tmp_path)) for path in (tiny_repacked, side))


@needs_runtime
@pytest.mark.parametrize("options", [(), ("--candidates", "2"), ("--prompt-format", "infill")])
def test_a_fill_runs_through_and_is_judged(dg_lsp, hole, tiny_repacked, options):
    outcome = dg_lsp("fill", hole, "--model", tiny_repacked, *QUICK, *options)
    assert outcome.code in (0, 1), outcome.err
    answer = outcome.json
    assert answer["model"] == "tiny"
    assert answer["decoder"] in ("diffusion", "infill")
    assert answer["canvas_length"] in (16, 32)
    assert answer["steps"] >= 1
    assert answer["prompt_tokens"] > 0
    assert bool(answer["candidates"]) == (outcome.code == 0)
    assert answer["timings_ms"]["denoise"] > 0


@needs_runtime
def test_without_its_side_file_or_with_another_it_is_refused(dg_lsp, hole, model):
    path, side = model
    content = side.read_bytes()
    side.write_bytes(content[:-4] + b"\0\1\2\3")
    outcome = dg_lsp("fill", hole, "--model", path)
    assert (outcome.code, outcome.out) == (3, "")
    assert "tiny.selfcond.gguf is not the file that tiny.gguf was written with" in outcome.err
    side.unlink()
    outcome = dg_lsp("fill", hole, "--model", path)
    assert outcome.code == 3
    assert "tiny.selfcond.gguf is missing" in outcome.err
    assert outcome.err.count("\n") == 1


def test_an_unchanged_llama_cpp_is_refused_with_the_command_that_builds_it(dg_lsp, hole, tiny_repacked, monkeypatch):
    monkeypatch.setattr(diffusiongemma, "supports_bidirectional", lambda: False)
    outcome = dg_lsp("fill", hole, "--model", tiny_repacked)
    assert outcome.code == 3
    assert "dg-lsp models build-runtime" in outcome.err


def test_a_file_of_the_pull_requests_is_refused_with_the_command_that_repacks_it(dg_lsp, hole, tiny_repacked, tmp_path):
    raw = tiny.write_diffusion_gguf(tiny_repacked, tmp_path / "raw.gguf")
    outcome = dg_lsp("fill", hole, "--model", raw)
    assert outcome.code == 3
    assert f"dg-lsp models convert {raw}" in outcome.err


def test_a_plain_gemma_4_is_a_causal_model(dg_lsp, hole, tiny_repacked, tmp_path):
    """Its file has no key of a diffusion model."""
    import gguf

    reader = gguf.GGUFReader(tiny_repacked)
    writer = gguf.GGUFWriter(tmp_path / "gemma.gguf", "gemma4")
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "dg.")) and name != "general.architecture":
            kind, *of = field.types
            writer.add_key_value(name, field.contents(), kind, of[-1] if of else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    outcome = dg_lsp("fill", hole, "--model", tmp_path / "gemma.gguf", *QUICK)
    assert outcome.code in (0, 1), outcome.err
    assert outcome.json["decoder"] in ("autoregressive", "prompt-lookup")
