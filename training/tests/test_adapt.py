"""Pretrained causal models of three architectures: the same logits before training, and a canvas after it."""

from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_causal import CONFIGS, write

from dg_lsp import gguf
from dg_lsp.backends.llamacpp import denoiser_for
from dg_lsp.backends.llamacpp.context import LlamaContext
from dg_lsp.backends.llamacpp.masked import ShiftedDenoiser
from dg_lsp.backends.llamacpp.memory_estimate import ContextBudget
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.canvas.layout import token_ids
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.engine import LocalEngine
from dg_lsp.engine.request import FillRequest
from dg_lsp.errors import InputFileError, ModelUnsupportedError
from dg_lsp.models.metadata import describe
from dg_lsp.settings import CompletionSettings, ModelSettings
from dg_training import adapt as adaptation
from dg_training import train
from dg_training.adapt import adapt
from dg_training.network import dense_mask
from dg_training.pretrained import read_pretrained
from dg_training.rows import RowConfig
from dg_training.tokenizer import (
    END_OF_MIDDLE,
    END_OF_TEXT,
    MASK,
    MIDDLE,
    PREFIX,
    SPECIAL_TOKENS,
    SUFFIX,
    count_tokens,
    prune,
)
from dg_training.train import AdaptOptions

CPU = ModelSettings(threads=1, gpu_layers=0)
ROWS = RowConfig(num_rows=4, num_clean=96, num_noisy=64, max_middle=24, canvas_lengths=(8,), canvas_shares=(1.0,))
OPTIONS = AdaptOptions(minutes=60.0, num_tokens=640, learning_rate=2e-3, file_type="F32")
NUM_SPECIAL = len(SPECIAL_TOKENS)


def silent(_report):
    pass


@pytest.fixture(scope="module", autouse=True)
def small_runs():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adaptation, "CPU_ROWS", ROWS)
        patch.setattr(train, "REPORT_STEPS", 5)
        patch.setattr(train, "VALIDATION_TOKENS", 1)
        yield


@pytest.fixture(scope="module", params=CONFIGS)
def source(request, toy, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param) / "source.gguf"
    tokenizer = write(path, request.param, toy.texts[:50])
    return SimpleNamespace(architecture=request.param, path=path, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def exported(source, toy):
    """The file before any training, and its pruned vocabulary."""
    path = toy.root / "new folder" / f"{source.architecture}-0.gguf"
    adapt(source.path, toy.root, path, adaptation.replace(OPTIONS, max_steps=0), silent)
    pretrained = read_pretrained(source.path)
    texts = (file.text for file in adaptation.read_texts(toy.root / "train.jsonl.xz"))
    counts = count_tokens(pretrained.vocabulary.tokenizer(), texts)
    return SimpleNamespace(path=path, pretrained=pretrained, pruned=prune(pretrained.vocabulary, counts, 640))


def kept_ids(pruned):
    """Source ids of the tokens after our special ones."""
    return pruned.source_ids[NUM_SPECIAL:]


def causal_logits(model, ids):
    size = len(ids)
    budget = ContextBudget(512, 512, size, size, size, 1, size)
    with closing(LlamaContext(model, budget, flash_attention=False)) as context:
        context.batch.put(token_ids(ids), np.arange(size, dtype=np.int32), np.zeros(size, np.int32), 1)
        context.decode(causal=True)
        return context.logits(np.ones(size, np.bool_)).copy()


def loaded(path):
    return closing(LlamaModel(path, CPU))


def test_logits_of_the_kept_tokens_are_those_of_the_source(source, exported, toy):
    with loaded(exported.path) as model:
        start = [END_OF_TEXT] if exported.pretrained.vocabulary.start_id is not None else []
        ids = [*start, *model.tokenizer.encode(toy.texts[7])][:60]
        sources = exported.pruned.source_ids[ids]
        assert (sources >= 0).all()
        logits = causal_logits(model, ids)[:, NUM_SPECIAL:]
    with loaded(source.path) as model:
        expected = causal_logits(model, sources)[:, kept_ids(exported.pruned)]
    assert np.abs(logits - expected).max() < 0.02 * expected.std()
    assert (logits.argmax(1) == expected.argmax(1)).mean() > 0.95


def test_a_pruned_vocabulary_gives_the_same_tokens(source, exported, toy):
    assert len(exported.pruned.source_ids) == 640 < source.tokenizer.get_vocab_size()
    to_pruned = {int(token): i for i, token in enumerate(exported.pruned.source_ids) if i >= NUM_SPECIAL}
    with loaded(exported.path) as model:
        num_same = 0
        for line in {line for text in toy.texts for line in text.split("\n")}:
            wanted = [to_pruned.get(i) for i in source.tokenizer.encode(line, add_special_tokens=False).ids]
            if None not in wanted:
                assert list(model.tokenizer.encode(line)) == wanted
                num_same += 1
        assert num_same > 100
        text = "αβγ ☃ def zygote_quux(): pass\n"
        assert model.tokenizer.decode(model.tokenizer.encode(text)).decode() == text
        tokenizer = exported.pruned.vocabulary.tokenizer()
        for text in toy.texts[50:]:
            assert tokenizer.encode(text).ids == list(model.tokenizer.encode(text))


def test_the_file_can_be_adapted_again(source, exported, toy):
    again = toy.root / f"{source.architecture}-again.gguf"
    adapt(exported.path, toy.root, again, adaptation.replace(OPTIONS, max_steps=0, num_tokens=656), silent)
    with loaded(exported.path) as first, loaded(again) as second:
        text = toy.texts[9][:150]
        ids, ids_again = ([END_OF_TEXT, *model.tokenizer.encode(text)] for model in (first, second))
        assert ids == ids_again
        np.testing.assert_allclose(causal_logits(first, ids), causal_logits(second, ids), atol=1e-5)


def test_the_first_guess_of_a_canvas_is_the_causal_model_s_own(source, exported):
    network = exported.pretrained.network(exported.pruned).eval()
    rng = np.random.default_rng(4)
    prompt = token_ids([END_OF_TEXT, SUFFIX, *rng.integers(NUM_SPECIAL, 640, 30), PREFIX, 100, MIDDLE])
    canvas = token_ids([MASK, 200, MASK, MASK, 300, MASK, MASK, MASK])
    n, m = len(prompt), len(canvas)
    starts = torch.tensor([[n]]), torch.tensor([[0]]), torch.tensor([[m]])
    mask = dense_mask(torch.zeros(1, n), *starts, m)
    with torch.no_grad():
        ids = torch.tensor(np.concatenate([prompt, canvas]))[None]
        states = network.hidden(ids, torch.arange(n + m)[None], mask)[0]
        logits = (states[n - 1 : -1] @ network.output_weight.T).numpy()
    model = LlamaModel(exported.path, CPU)
    spec = describe(model.metadata, model.vocab_size, "tiny")
    assert spec.is_shifted
    with closing(denoiser_for(model, spec, CPU)) as denoiser:
        assert isinstance(denoiser, ShiftedDenoiser)
        denoiser.prefill(0, prompt)
        for ids in (canvas, np.where(canvas == MASK, canvas, canvas + 1), canvas):
            (prediction,) = denoiser.predict(0, [token_ids(ids)], 0.0, rng)
        denoiser.prefill(0, prompt[:-1])
        causal = denoiser.extend(0, prompt[-1:])
    open_ = np.flatnonzero(canvas == MASK)
    logits[:, list(spec.banned_ids)] = -np.inf
    assert prediction.argmax_ids[open_].tolist() == logits.argmax(1)[open_].tolist()
    probability = np.exp(logits.max(1) - np.logaddexp.reduce(logits, 1))
    assert prediction.confidence[open_] == pytest.approx(probability[open_], abs=0.01)
    assert prediction.argmax_ids[0] == causal.argmax_ids[0]
    assert prediction.confidence[0] == pytest.approx(causal.confidence[0], abs=1e-4)


def test_training_lowers_the_losses_and_the_file_fills(source, toy):
    reports = []
    path = toy.root / f"{source.architecture}-trained.gguf"
    options = adaptation.replace(OPTIONS, max_steps=20)
    adapt(source.path, toy.root, path, options, reports.append)
    first, last = (next(r for r in group if "rate" in r) for group in (reports, reports[::-1]))
    assert (first["step"], last["step"]) == (5, 20)
    assert last["masked_text"] < first["masked_text"]
    assert last["next_token_context"] < first["next_token_context"]
    assert {"next_token_middle", "masked_middle", "fill", "masked_middle_leftmost"} <= set(reports[-1])
    model = LlamaModel(path, CPU)
    spec = describe(model.metadata, model.vocab_size, path.stem)
    assert spec.start_ids == ((END_OF_TEXT,) if source.architecture == "llama" else ())
    denoiser = denoiser_for(model, spec, CPU)
    with closing(LocalEngine(denoiser, denoiser.tokenizer, CompletionSettings(early_stop_ms=0))) as engine:
        text = "def total_count(value, count=3):\n    "
        for decoder in (DecoderName.DIFFUSION, DecoderName.AUTOREGRESSIVE, DecoderName.PROMPT_LOOKUP):
            request = FillRequest(Snapshot("file:///a.py", text, "python"), len(text), 1, 1, decoder=decoder)
            assert engine.fill(request, deadline=float("inf")).steps > 0


def test_a_run_goes_on_from_its_checkpoint(toy, tmp_path):
    source = tmp_path / "source.gguf"
    write(source, "qwen3", toy.texts[:20])
    reports = []
    for is_resumed in (False, True):
        options = adaptation.replace(OPTIONS, max_steps=5, is_resumed=is_resumed)
        adapt(source, toy.root, tmp_path / "resumed.gguf", options, reports.append)
        small = adaptation.replace(OPTIONS, max_steps=0, num_tokens=512)
        adapt(source, toy.root, tmp_path / "resumed.gguf", small, silent)  # leaves the run as it is
    assert [report["step"] for report in reports if "tokens_per_second" in report] == [5, 10]
    adapt(source, toy.root, tmp_path / "resumed.gguf", adaptation.replace(options, max_steps=0), silent)
    assert read_pretrained(tmp_path / "resumed.gguf").progress.step == 10
    adapt(source, toy.root, tmp_path / "other.gguf", adaptation.replace(OPTIONS, max_steps=0), silent)
    with pytest.raises(InputFileError, match="leave out --resume"):  # no checkpoint was written
        adapt(source, toy.root, tmp_path / "other.gguf", options, silent)


def test_a_checkpoint_without_a_licence_is_refused(toy, tmp_path):
    source, path = tmp_path / "source.gguf", tmp_path / "a.gguf"
    write(source, "qwen2", toy.texts[:20], licence="")
    with pytest.raises(InputFileError, match="states no licence: pass --licence"):
        adapt(source, toy.root, path, OPTIONS, silent)
    adapt(source, toy.root, path, adaptation.replace(OPTIONS, max_steps=0, licence="mit"), silent)
    assert "Licence: mit, that of the original" in path.with_suffix(".md").read_text()
    with loaded(path) as model:
        assert model.metadata["general.license"] == "mit"


def test_a_folder_is_refused_with_the_command_that_converts_it(tmp_path):
    with pytest.raises(InputFileError, match="dg-lsp models convert"):
        read_pretrained(tmp_path)


def test_special_tokens_begin_as_those_of_the_source(toy, tmp_path):
    tokenizer = write(tmp_path / "source.gguf", "qwen2", toy.texts[:20])
    pretrained = read_pretrained(tmp_path / "source.gguf")
    pruned = prune(pretrained.vocabulary, {}, 400)
    spelled = [tokenizer.token_to_id(f"<|fim_{name}|>") for name in ("prefix", "suffix", "middle")]
    assert pruned.source_ids[[PREFIX, SUFFIX, MIDDLE]].tolist() == spelled
    assert pruned.source_ids[END_OF_MIDDLE] == tokenizer.token_to_id("<|endoftext|>")
    weights = pretrained.read("token_embd.weight")
    rows = pruned.rows(weights)
    assert np.array_equal(rows[PREFIX], weights[spelled[0]])
    assert rows[MASK] == pytest.approx(weights[kept_ids(pruned)].mean(0), abs=0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"general.architecture": gguf.text("mamba")}, "is of architecture mamba"),
        ({"qwen3.rope.scaling.type": gguf.text("yarn")}, "rotations scaled by yarn"),
        ({"qwen3.block_count": None}, "lacks 'qwen3.block_count'"),
        ({"qwen3.attention.head_count": gguf.uint32(0)}, "zero"),
        ({"qwen3.embedding_length": gguf.text("wide")}, "'wide'"),
        ({"tokenizer.ggml.merges": gguf.int32s([1, 2])}, "not valid"),
        ({"tokenizer.ggml.token_type": gguf.int32s([1])}, "not valid"),
    ],
)
def test_a_damaged_file_is_refused_with_its_reason(change, message, toy, tmp_path):
    path, damaged = tmp_path / "whole.gguf", tmp_path / "damaged.gguf"
    write(path, "qwen3", toy.texts[:10])
    header = gguf.read_header(path)
    values = {key: value for key, value in {**header.values, **change}.items() if value is not None}
    with damaged.open("wb") as file:
        gguf.write_gguf(file, values, [gguf.copied(tensor) for tensor in header.tensors.values()])
    with pytest.raises(ModelUnsupportedError, match=message):
        adapt(damaged, toy.root, tmp_path / "new.gguf", adaptation.replace(OPTIONS, max_steps=0), silent)
