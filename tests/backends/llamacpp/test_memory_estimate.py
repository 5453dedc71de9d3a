"""Sizes of contexts, and refusals of what does not fit into memory."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from scripted import MASK_SPEC

from dg_lsp.backends.llamacpp import LlamaModel, library, memory_estimate, model
from dg_lsp.backends.llamacpp.denoiser import fitting_budget
from dg_lsp.backends.llamacpp.library import Device
from dg_lsp.backends.llamacpp.memory_estimate import (
    ContextBudget,
    MemoryEstimate,
    ModelSizes,
    check_fits,
    context_budget,
    estimate_context,
    estimate_load,
    num_gpu_layers,
    weight_bytes,
)
from dg_lsp.canvas.spec import UniformSampling
from dg_lsp.errors import ModelError, ModelMemoryError
from dg_lsp.gguf import Value, copied, read_header, write_gguf
from dg_lsp.settings import ModelSettings

GB, MIB = 10**9, 1 << 20
CPU = ModelSettings(threads=1, gpu_layers=0)
SIZES = ModelSizes(
    layers=4, heads=4, width=256, inner=704, vocab_size=8192, trained_length=2048, kv_bytes_per_token=2048
)
BUDGET = ContextBudget(4096, 1024, 1000, 512, 256, 11, 936)
CARD = Device("RTX 5090", "gpu", 10 * GB, 32 * GB)
SHARED = Device("Radeon 890M", "igpu", 40 * GB, 64 * GB)


@pytest.mark.parametrize("length", [0, 1, 300, 100_000])
@pytest.mark.parametrize("longest", [1, 64, 1024])
def test_canvases_of_a_step_fit_into_the_batch(longest, length):
    spec = replace(MASK_SPEC, max_prompt_tokens=512, canvas_lengths=(longest,))
    made = context_budget(spec, ModelSettings(context_length=length), SIZES)
    assert made.canvas_tokens <= made.batch_tokens <= made.context_length


@pytest.fixture
def machine(monkeypatch):
    return lambda free: monkeypatch.setattr(memory_estimate, "system_free", lambda: free)


FLAGSHIP = ModelSizes(
    layers=30, heads=16, width=2816, inner=5632, vocab_size=262_144, trained_length=262_144, kv_bytes_per_token=225_280
)
BLOCKS = replace(MASK_SPEC, sampling=UniformSampling(), max_prompt_tokens=2048, canvas_lengths=(16, 256))


@pytest.mark.parametrize(
    ("host_free", "gpu_free", "reserved", "slot_limit"),
    [
        pytest.param(2 * GB, None, 0, 4766, id="processor"),
        pytest.param(4 * GB, None, 0, 8192 + 512, id="processor with more memory"),
        pytest.param(32 * GB, 2 * GB, 0, 4766, id="GPU"),
        pytest.param(32 * GB, 4 * GB, 0, 8192 + 512, id="GPU with more memory"),
        pytest.param(32 * GB, 4 * GB, 3 * GB, 4766, id="GPU that holds embeddings too"),
        pytest.param(32 * GB, 6 * GB, 3 * GB, 8192 + 512, id="24 GB less the weights in Q4_K_M"),
        pytest.param(100 * MIB, 6 * GB, 0, 4766, id="GPU in a machine without memory for logits"),
    ],
)
def test_slot_of_the_flagship_holds_a_conversation_where_memory_allows(
    machine, host_free, gpu_free, reserved, slot_limit
):
    cards = [] if gpu_free is None else [replace(CARD, memory_free=gpu_free)]
    machine(host_free)
    weights = SimpleNamespace(sizes=FLAGSHIP, gpu_share=float(bool(cards)), mapped_bytes=0, used_gpus=cards)
    made = fitting_budget(weights, BLOCKS, ModelSettings(), flash=True, reserved=reserved)
    assert made.slot_limit == slot_limit
    assert made.context_length >= max(slot_limit, 2 * 2048) + made.canvas_tokens
    fixed = ModelSettings(context_length=1024)
    assert fitting_budget(weights, BLOCKS, fixed, flash=True, reserved=reserved).slot_limit == 1024


IN_GPU, IN_MACHINE = r"RTX 5090 has 10\.0 GB free: use less", r"has \d\.0 GB free: use less"
RESERVE = r"it needs 3\.7 GB of memory including a reserve, this machine has 2\.0 GB free: use less"


@pytest.mark.parametrize(
    ("platform", "free", "devices", "needed", "problem"),
    [
        pytest.param("linux", 2, [CARD], MemoryEstimate(9 * GB, GB), "", id="GPU and machine"),
        pytest.param("linux", 2, [CARD, CARD], MemoryEstimate(18 * GB), "", id="two GPUs"),
        pytest.param("linux", 2, [replace(CARD, memory_free=0)], MemoryEstimate(99 * GB), "", id="unknown memory"),
        pytest.param("linux", 2, [], MemoryEstimate(0, 1_950_000_000), IN_MACHINE, id="no room for the reserve"),
        pytest.param("linux", 2, [CARD], MemoryEstimate(11 * GB), IN_GPU, id="too large for the GPU"),
        pytest.param("linux", 2, [CARD], MemoryEstimate(GB, 3_500_000_000), RESERVE, id="too large for the machine"),
        pytest.param("linux", 8, [SHARED], MemoryEstimate(9 * GB), IN_MACHINE, id="shared memory"),
        pytest.param("darwin", 8, [CARD], MemoryEstimate(9 * GB), IN_MACHINE, id="unified memory"),
    ],
)
def test_gpu_and_host_are_compared_separately(machine, monkeypatch, platform, free, devices, needed, problem):
    monkeypatch.setattr(memory_estimate.sys, "platform", platform)
    machine(free * GB)
    with pytest.raises(ModelMemoryError, match=problem) if problem else nullcontext():
        check_fits("it", needed, "use less", gpus=devices)


def test_mapped_weights_are_in_use_although_the_system_counts_them_as_free(machine):
    machine(2 * GB)
    check_fits("it", MemoryEstimate(0, GB), "")
    with pytest.raises(ModelMemoryError):
        check_fits("it", MemoryEstimate(0, GB), "", mapped=GB)


@pytest.mark.parametrize(
    ("cells", "flash", "compute", "cache"),
    # what llama.cpp reports for dg-mini: its compute buffer, and its cache
    [(1024, False, 13.14, 2), (1024, True, 8.76, 2), (4096, False, 43.43, 8)],
    ids=["short context", "flash attention", "long context"],
)
def test_estimate_is_more_than_llama_cpp_allocates_and_not_twice_that(cells, flash, compute, cache):
    host = estimate_context(SIZES, BUDGET, cells, gpu_share=0, flash=flash).host
    logits = 4 * 256 * 8192 / MIB
    assert compute + logits <= host / MIB - cache < 1.7 * (compute + logits)
    half = estimate_context(SIZES, BUDGET, cells, gpu_share=0.5, flash=flash)
    whole = estimate_context(SIZES, BUDGET, cells, gpu_share=1, flash=flash)
    assert whole.gpu - half.gpu == half.host - whole.host == cache * MIB / 2


def test_weights_count_where_their_layers_are(tiny_repacked):
    header = read_header(tiny_repacked)
    everything = sum(tensor.size for tensor in header.tensors.values())
    table = header.tensors["token_embd.weight"].size
    assert weight_bytes(header, 0) == MemoryEstimate(0, everything)
    assert weight_bytes(header, -1) == MemoryEstimate(everything, table), "the embeddings are the output layer as well"
    assert weight_bytes(header, -1) == weight_bytes(header, 99)
    some = weight_bytes(header, 1)
    assert some.host < everything
    assert some.gpu >= header.tensors["output_norm.weight"].size + table
    assert [num_gpu_layers(wanted, 4) for wanted in (-1, 0, 3, 9)] == [5, 0, 3, 5]


def test_a_split_model_needs_what_the_whole_one_needs_whatever_its_name_is(tiny_path, tmp_path, opened):
    (tmp_path / "m1-00001-of-00002.gguf").touch()  # of another model
    whole = read_header(tiny_path)
    tensors = [copied(tensor) for tensor in whole.tensors.values()]
    parts = [tmp_path / f"m[1]-0000{number}-of-00002.gguf" for number in (1, 2)]
    for number, (values, stored) in enumerate([(whole.values, []), ({}, tensors)]):
        keys = {"split.no": Value(2, bytes([number, 0])), "split.count": Value(2, bytes([2, 0]))}
        keys["split.tensors.count"] = Value(5, len(tensors).to_bytes(4, "little"))
        with parts[number].open("wb") as file:
            write_gguf(file, {**values, **keys}, stored)
    expected = estimate_load(whole, gpu_layers=0, context_length=0)
    assert estimate_load(read_header(parts[0]), gpu_layers=0, context_length=0) == expected
    assert opened(LlamaModel(parts[0], CPU)).size_bytes == sum(path.stat().st_size for path in parts)
    parts[1].unlink()
    with pytest.raises(ModelError, match="has a vocabulary but no weights"):
        LlamaModel(parts[0], CPU)


@pytest.mark.parametrize("smallest", [0, 1 << 40], ids=["mapped file", "read file"])
def test_model_is_refused_before_it_is_loaded(machine, monkeypatch, tiny_path, smallest):
    machine(20 * MIB)
    monkeypatch.setattr(model, "_MAPPED_BYTES", smallest)
    monkeypatch.setattr(library.library().api, "llama_model_load_from_file", lambda *_: pytest.fail("it was loaded"))
    with pytest.raises(ModelMemoryError, match=r"tiny\.gguf needs \d+ MB .* 21 MB free: use a smaller model"):
        LlamaModel(tiny_path, CPU)
