"""Held-out questions answered by a random model, in every way, through the product's own plans."""

# ruff: noqa: E402 - what may be missing is asked for first

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.canvas.layout import common_prefix_length
from dg_lsp.engine.request import DecoderName
from dg_lsp.models.metadata import describe
from dg_lsp.settings import RuntimeSettings
from dg_lsp.training.corpus import SourceFile
from dg_lsp.training.evaluation import Fillers, Result, Way, evaluate, table
from dg_lsp.training.gguf_file import Description, write_gguf
from dg_lsp.training.network import Network
from dg_lsp.training.questions import Question, held_out_questions
from dg_lsp.training.vocabulary import END_OF_MIDDLE

from .conftest import source

CPU = RuntimeSettings(threads=1, gpu_layers=0)
FILES = [SourceFile("toy", f"{i}.py", source(random.Random(i), 60)) for i in range(3)]


@pytest.fixture(scope="module")
def network(toy):
    return Network(toy.config.network).eval()


@pytest.fixture(scope="module")
def fillers(toy, network, tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "toy.gguf"
    write_gguf(path, network, toy.tokenizer, Description("tiny", (8, 16), 96, 0), "F32")
    model = LlamaModel.load(path, CPU)
    spec = describe(model.metadata, model.vocab_size, "toy")
    denoiser = LlamaDenoiser(model, spec, CPU)
    yield Fillers(denoiser, denoiser.tokenizer)
    denoiser.close()


def test_every_question_is_answered_in_every_way(fillers):
    questions = held_out_questions(FILES, 6, str.split)
    ways = [
        Way(),
        Way(DecoderName.LOOKUP),
        Way(DecoderName.DRAFT_VERIFY, 8),
        Way(DecoderName.CANVAS, 16, 0.5, "confident"),
    ]
    results = evaluate(fillers, questions, ways)
    assert [len(rows) for rows in results.values()] == [6] * 4
    for rows in results.values():
        assert all("\n" not in row.got and row.seconds > 0 for row in rows)
        assert [row.want for row in rows] == [question.want.rstrip() for question in questions]
    lines = table(results).split("\n")
    assert len(lines) == 2 + 4
    assert {line.count("|") for line in lines} == {12}


@pytest.mark.parametrize("way", [Way(DecoderName.LOOKUP), Way(DecoderName.DRAFT_VERIFY, 8)], ids=lambda way: way.name)
def test_plans_that_verify_answer_what_the_causal_one_does(fillers, network, way):
    """Up to a near tie of two tokens, of which a pass over several positions may take the other one."""
    for question in held_out_questions(FILES, 6, str.split):
        causal, verified = (fillers.answer(question, each).ids for each in (Way(), way))
        assert len(causal)
        num_same = common_prefix_length(causal, verified)
        if num_same < max(len(causal), len(verified)):
            prompt = fillers.layout(question).prompt_ids
            logits = next_logits(network, np.concatenate([prompt, causal[:num_same]]))
            one, other = (ids[num_same] if num_same < len(ids) else END_OF_MIDDLE for ids in (causal, verified))
            assert abs(logits[one] - logits[other]) < 0.05 * logits.std()


def next_logits(network, ids):
    """Of the token that follows, shape (V,), computed by torch."""
    length = len(ids)
    with torch.no_grad():
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        hidden = network.hidden(
            torch.from_numpy(ids.astype(np.int64))[None], torch.arange(length)[None], seen[None, None]
        )
        return network.logits(hidden)[0, -1].numpy()


def test_the_middle_is_not_in_its_own_prompt(fillers):
    text = "a = 1\nb = the_middle\nc = 3\n"
    start = text.index("the_middle")
    layout = fillers.layout(Question("line end", "toy", text, start, start + len("the_middle")))
    assert fillers._tokenizer.decode(layout.prompt_ids).decode() == "\nc = 3\na = 1\nb = "


@pytest.mark.parametrize(
    ("got", "want", "is_exact", "is_first_word_right"),
    [
        pytest.param("return x", "return x", True, True, id="the same"),
        pytest.param("return y", "return x", False, True, id="begins the same"),
        pytest.param("", "return x", False, False, id="nothing"),
    ],
)
def test_results_are_judged_by_their_first_line(got, want, is_exact, is_first_word_right):
    result = Result("line end", got, want, passes=3, seconds=0.1, tokens=2)
    assert result.is_exact is is_exact
    assert result.is_first_word_right is is_first_word_right
    assert (result.similarity == 1) is is_exact
