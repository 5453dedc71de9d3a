"""What does not fit is refused before any of it is taken, with the numbers."""

import sys
from dataclasses import replace

import pytest

from dg_lsp.backends.llamacpp import LlamaModel, memory_estimate, model
from dg_lsp.backends.llamacpp.library import Device, library
from dg_lsp.backends.llamacpp.memory_estimate import (
    ContextBudget,
    MemoryNeed,
    MemoryNeeds,
    Sizes,
    Weights,
    check_fits,
    context_need,
    first_context_need,
    header_of,
    layers_on_gpu,
    sizes_of,
    total_size,
    weights_need,
    weights_of,
)
from dg_lsp.errors import ModelMemoryError
from dg_lsp.settings import RuntimeSettings

GB, MIB = 10**9, 1 << 20
CPU = RuntimeSettings(threads=1, gpu_layers=0)
SIZES = Sizes(layers=4, heads=4, width=256, inner=704, vocab_size=8192, trained_length=2048, kv_bytes_per_token=2048)
BUDGET = ContextBudget(4096, 1024, 1000, 512, 256, 11, 64)
CARD = Device("RTX 5090", "gpu", 10 * GB, 32 * GB)
SHARED = Device("Radeon 890M", "igpu", 40 * GB, 64 * GB)
HOST = Device("Xeon", "cpu", 64 * GB, 64 * GB)


@pytest.fixture
def machine(monkeypatch):
    def has(free, *devices):
        monkeypatch.setattr(memory_estimate, "system_free", lambda: free)
        monkeypatch.setattr(sys.modules["dg_lsp.backends.llamacpp.library"], "devices", lambda: (HOST, *devices))

    return has


def test_what_fits_is_let_through(machine):
    machine(2 * GB)
    check_fits("it", MemoryNeeds(host=MemoryNeed(weights=GB)), "")
    check_fits("nothing", MemoryNeeds(), "")


@pytest.mark.parametrize("size", [100 * MIB, 20 * GB])
def test_some_is_left_free(machine, size):
    machine(size + 16 * MIB)
    with pytest.raises(ModelMemoryError):
        check_fits("it", MemoryNeeds(host=MemoryNeed(weights=size)), "")


def test_the_refusal_says_what_takes_how_much_and_what_to_do(machine):
    machine(2 * GB)
    with pytest.raises(ModelMemoryError) as refused:
        check_fits("big.gguf", MemoryNeeds(host=MemoryNeed(weights=3 * GB, cache=500_000_000)), "use a smaller one")
    assert str(refused.value) == (
        "big.gguf needs 3.7 GB of memory with some to spare (weights 3.0 GB, prompts 500 MB), "
        "this machine has 2.0 GB free: use a smaller one"
    )


def test_a_card_and_the_machine_are_weighed_apart(machine):
    machine(2 * GB, CARD)
    check_fits("it", MemoryNeeds(MemoryNeed(weights=9 * GB), MemoryNeed(weights=GB)), "")
    with pytest.raises(ModelMemoryError, match=r"RTX 5090 has 10\.0 GB free"):
        check_fits("it", MemoryNeeds(gpu=MemoryNeed(weights=11 * GB)), "")
    with pytest.raises(ModelMemoryError, match=r"this machine has 2\.0 GB free"):
        check_fits("it", MemoryNeeds(MemoryNeed(weights=GB), MemoryNeed(weights=3 * GB)), "")
    machine(2 * GB, CARD, CARD)
    check_fits("it", MemoryNeeds(gpu=MemoryNeed(weights=18 * GB)), "")


def test_a_card_that_says_nothing_is_believed(machine):
    machine(2 * GB, replace(CARD, memory_free=0))
    check_fits("it", MemoryNeeds(gpu=MemoryNeed(weights=99 * GB)), "")


def test_a_device_without_memory_of_its_own_has_the_machines(machine, monkeypatch):
    machine(8 * GB, SHARED)
    with pytest.raises(ModelMemoryError, match=r"this machine has 8\.0 GB free"):
        check_fits("it", MemoryNeeds(gpu=MemoryNeed(weights=9 * GB)), "")
    machine(8 * GB, CARD)
    check_fits("it", MemoryNeeds(gpu=MemoryNeed(weights=9 * GB)), "")
    machine(8 * GB, CARD, SHARED)
    check_fits("it", MemoryNeeds(gpu=MemoryNeed(weights=9 * GB)), "")  # llama.cpp takes the card alone
    machine(8 * GB, CARD)
    monkeypatch.setattr(memory_estimate.sys, "platform", "darwin")
    with pytest.raises(ModelMemoryError, match="this machine"):
        check_fits("it", MemoryNeeds(gpu=MemoryNeed(weights=9 * GB)), "")


def test_mapped_weights_are_not_free_although_the_system_says_so(machine):
    machine(4 * GB)
    check_fits("a context", MemoryNeeds(host=MemoryNeed(cache=GB)), "")
    with pytest.raises(ModelMemoryError, match=r"has 1\.0 GB free"):
        check_fits("a context", MemoryNeeds(host=MemoryNeed(cache=GB)), "", mapped=3 * GB)


@pytest.mark.parametrize(
    ("cells", "flash", "compute", "cache"),
    # what llama.cpp says of dg-mini: its compute buffer, and its cache
    [(1024, False, 13.14, 2), (1024, True, 8.76, 2), (4096, False, 43.43, 8)],
)
def test_the_estimate_is_rather_too_high(cells, flash, compute, cache):
    found = context_need(SIZES, BUDGET, cells, gpu_share=0, flash=flash).host
    logits = 4 * 256 * 8192 / MIB
    assert found.cache == cache * MIB
    assert compute + logits <= found.step / MIB < 1.7 * (compute + logits)


def test_a_context_is_where_its_layers_are():
    half = context_need(SIZES, BUDGET, 1024, gpu_share=0.5, flash=True)
    assert half.gpu.cache == half.host.cache == MIB
    assert half.gpu.step > half.host.step > 0
    assert context_need(SIZES, BUDGET, 1024, gpu_share=1, flash=True, has_cache=False).gpu.cache == 0


def test_a_length_that_is_set_counts_before_the_model_is_loaded():
    small, large = (first_context_need(SIZES, length, gpu_share=0).host.cache for length in (0, 1 << 20))
    assert small == 2048 * 2048
    assert large == 2048 << 20


def test_sizes_are_read_from_the_file(tiny_path, tiny_repacked):
    plain, gemma = (sizes_of(header_of(path)) for path in (tiny_path, tiny_repacked))
    loaded = [LlamaModel.load(path, CPU) for path in (tiny_path, tiny_repacked)]
    assert [each.sizes for each in loaded] == [plain, gemma], "with llama.cpp and without"
    assert plain.kv_bytes_per_token == 2 * 2 * 64 * 2
    assert gemma.kv_bytes_per_token < 2 * gemma.layers * 2 * gemma.heads * 64, "window layers have heads of their own"
    assert loaded[0].weights.host == tiny_path.stat().st_size
    for each in loaded:
        each.close()


def test_weights_are_where_their_layers_are(tiny_path):
    header = header_of(tiny_path)
    everything = sum(tensor.size for tensor in header.tensors.values())
    table = header.tensors["token_embd.weight"].size
    assert weights_of(header, 0) == Weights(0, everything)
    assert weights_of(header, -1) == Weights(everything, table), "embeddings are the head, too"
    assert weights_of(header, -1) == weights_of(header, 99)
    some = weights_of(header, 1)
    assert some.host < everything
    assert some.gpu == header.tensors["output_norm.weight"].size + table
    assert [layers_on_gpu(wanted, 4) for wanted in (-1, 0, 3, 9)] == [5, 0, 3, 5]
    assert weights_need(some) == MemoryNeeds(MemoryNeed(weights=some.gpu), MemoryNeed(weights=some.host))


def test_a_model_in_parts_is_weighed_as_a_whole(tmp_path):
    for number, size in ((1, 100), (2, 50), (3, 7)):
        (tmp_path / f"m-0000{number}-of-00003.gguf").write_bytes(b"x" * size)
    assert total_size(tmp_path / "m-00001-of-00003.gguf") == 157


@pytest.mark.parametrize("least", [0, 1 << 40], ids=["a file that is mapped", "a file that is read"])
def test_a_model_is_refused_before_it_is_loaded(machine, monkeypatch, tiny_path, least):
    machine(20 * MIB)
    monkeypatch.setattr(model, "_MAPPED_BYTES", least)
    monkeypatch.setattr(library().api, "llama_model_load_from_file", lambda *_: pytest.fail("it was loaded"))
    with pytest.raises(ModelMemoryError, match=r"tiny\.gguf needs \d+ MB .* 21 MB free: use a smaller model"):
        LlamaModel.load(tiny_path, CPU)


def test_a_large_file_is_weighed_with_its_context(machine, monkeypatch, tiny_path):
    machine(4 * GB)
    monkeypatch.setattr(model, "_MAPPED_BYTES", 0)
    LlamaModel.load(tiny_path, CPU).close()
    with pytest.raises(ModelMemoryError, match=r"prompts \d+\.\d GB"):
        LlamaModel.load(tiny_path, RuntimeSettings(threads=1, gpu_layers=0, context_length=50_000_000))


@pytest.mark.parametrize("length", [50_000_000, 4_000_000_000, 10**15])
def test_a_context_is_refused_before_it_is_made(open_denoiser, length):
    with pytest.raises(ModelMemoryError, match="context_length"):
        open_denoiser(context_length=length)
    denoiser = open_denoiser()
    assert denoiser.prefill(0, [9, 8, 7]) == 3
