"""A random tiny model under torch and under llama.cpp: the same tokens, the same logits, and what the file says."""
# ruff: noqa: E402 - what may be missing is asked for first

import random
import sysconfig
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
gguf = pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
pytest.importorskip("llama_cpp")

from dg_lsp.backends.llamacpp.context import LlamaContext
from dg_lsp.backends.llamacpp.memory_estimate import ContextBudget
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.canvas.layout import token_ids
from dg_lsp.models.metadata import describe
from dg_lsp.settings import RuntimeSettings
from dg_lsp.training import vocabulary as v
from dg_lsp.training.gguf_file import Description, write_gguf
from dg_lsp.training.network import Network
from dg_lsp.training.tokenizer import tokenizer_of

CPU = RuntimeSettings(threads=1, gpu_layers=0)
ODD_TEXTS = [
    "x = 'naïve café 東京 🎉'\r\n\t\tif a:\u00a0\n\n\n   \n'LL don't we'Re 12345 ²½\n",
    "",
    " ",
    "\n\n  \n",
    "def f(",
    "    return x1234567.real  # ... 1e-9\n\n\n\nclass A: pass",
]
SPECIALS_AS_TEXT = "'<|mask|>' and <|eom|> are text here"


@pytest.fixture(scope="module")
def network(toy):
    torch.manual_seed(11)
    network = Network(toy.config.network).eval()
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.3 * torch.randn_like(weight))  # norms that are not ones, logits that are not flat
    return network


@pytest.fixture(scope="module")
def paths(toy, network, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    description = Description("tiny", (16, 8, 64, 32), 319, 1234567)
    for kind in ("F32", "F16", "Q8_0"):
        write_gguf(folder / f"{kind}.gguf", network, toy.tokenizer, description, kind)
    return folder


@pytest.fixture(scope="module")
def model(paths):
    model = LlamaModel.load(paths / "F32.gguf", CPU)
    yield model
    model.close()


def logits(context, ids, start, *, causal):
    """All of them, of ids at positions from `start`."""
    ids = token_ids(ids)
    positions = np.arange(start, start + len(ids), dtype=np.int32)
    context.batch.put_tokens(ids, positions, np.zeros_like(positions), 1)
    assert context.decode(causal=causal) == 0
    return context.logits(len(ids)).copy()


def torch_logits(network, prompt, canvas):
    """Causal prompt, then a canvas that sees the prompt and itself."""
    n, m = len(prompt), len(canvas)
    mask = torch.ones(n + m, n + m, dtype=torch.bool).tril()
    mask[n:] = True
    ids = torch.tensor([*prompt, *canvas])[None]
    with torch.no_grad():
        return network.logits(network.hidden(ids, torch.arange(n + m)[None], mask[None, None]))[0].numpy()


@pytest.mark.parametrize(("kind", "tolerance"), [("F32", 0.05), ("F16", 0.1)])
def test_logits_of_prompt_and_canvas_agree(kind, tolerance, network, paths):
    rng = np.random.default_rng(2)
    prompt = [v.SUFFIX, *rng.integers(16, 512, 40), v.PREFIX, *rng.integers(16, 512, 60), v.MIDDLE]
    canvas = rng.integers(16, 512, 16)
    canvas[::2] = v.MASK
    expected = torch_logits(network, prompt, canvas)
    model = LlamaModel.load(paths / f"{kind}.gguf", CPU)
    size = len(prompt) + len(canvas)
    context = LlamaContext(model, ContextBudget(512, 512, size, size, size, 1, len(canvas)), flash_attention=False)
    causal = logits(context, prompt, 0, causal=True)
    for _ in range(2):  # the same canvas again after its cells were dropped
        found = logits(context, canvas, len(prompt), causal=False)
        context.crop(0, len(prompt))
        assert np.abs(found - expected[len(prompt) :]).max() < tolerance * expected.std()
    assert np.abs(causal - expected[: len(prompt)]).max() < tolerance * expected.std()
    # the canvas is really read in both directions: causally, its first slot would know less
    one_way = logits(context, canvas, len(prompt), causal=True)
    assert np.abs(one_way[0] - expected[len(prompt)]).max() > tolerance * expected.std()
    context.close()
    model.close()


def test_the_tokenizer_comes_out_of_the_file_as_it_went_in(toy, paths):
    assert tokenizer_of(paths / "F32.gguf").to_str() == toy.tokenizer.to_str()


def test_llama_cpp_tokenizes_as_training_does(toy, model):
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = [path.read_text("utf-8", "replace") for path in random.Random(4).sample(files, 20)]
    for text in [*texts, *ODD_TEXTS, *toy.texts[:5]]:
        ids = model.tokenizer.encode(text)
        assert ids.tolist() == toy.tokenizer.encode(text).ids
        assert model.tokenizer.decode(ids).decode() == text


def test_special_tokens_in_a_file_are_text(model):
    ids = model.tokenizer.encode(SPECIALS_AS_TEXT)
    assert min(ids) >= v.NUM_SPECIALS
    assert model.tokenizer.decode(ids).decode() == SPECIALS_AS_TEXT


def test_the_file_describes_itself(model):
    spec = describe(model.metadata, model.vocab_size, "dg-mini")
    assert spec.canvas_lengths == (8, 16, 32, 64)
    assert spec.max_prompt_tokens == 319
    assert spec.end_ids == (v.END_OF_MIDDLE,)
    assert spec.banned_ids == v.BANNED_IDS
    assert model.metadata["dg.tokens_seen"] == "1234567"
    assert model.metadata["dg.causal"] == "true"
    assert model.metadata["dg.config"] == "tiny"
    assert model.metadata["general.name"] == "dg-mini"
    assert "general.license" in model.metadata


def test_llama_cpps_own_infill_keys_are_there(paths):
    reader = gguf.GGUFReader(paths / "Q8_0.gguf")
    tokens = {
        f"tokenizer.ggml.fim_{key}_token_id": i for key, i in (("pre", v.PREFIX), ("suf", v.SUFFIX), ("mid", v.MIDDLE))
    }
    tokens |= {"tokenizer.ggml.mask_token_id": v.MASK, "tokenizer.ggml.eot_token_id": v.END_OF_MIDDLE}
    for key, token in tokens.items():
        assert int(reader.fields[key].parts[-1][0]) == token
    assert "output.weight" not in {tensor.name for tensor in reader.tensors}  # tied to the embedding
