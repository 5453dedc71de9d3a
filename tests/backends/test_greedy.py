import numpy as np
import pytest

from dg_lsp.backends.llamacpp.greedy import GreedyDecoder
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.canvas.plan import token_ids
from dg_lsp.errors import RequestError
from dg_lsp.settings import RuntimeSettings

CPU = RuntimeSettings(threads=1, gpu_layers=0)
PROMPT = token_ids(range(20, 50))


@pytest.fixture
def model(tiny_path):
    opened = LlamaModel.load(tiny_path, CPU)
    yield opened
    opened.close()


@pytest.fixture
def greedy(model, open_denoiser):
    decoder = GreedyDecoder(model, open_denoiser.mask, threads=1, max_tokens=12)
    yield decoder
    decoder.close()


def never(_token):
    return False


def test_every_token_is_the_best_one_after_those_before(greedy, open_denoiser):
    greedy.prefill(PROMPT)
    found = greedy.decode(never)
    assert 0 < len(found) <= 12
    assert not set(found.tolist()) & {*open_denoiser.mask.banned_ids, *open_denoiser.mask.end_ids}
    again = []
    for number in range(len(found)):
        greedy.prefill(token_ids(np.concatenate([PROMPT, found[:number]])))
        again.append(int(greedy.decode(lambda _: True)[0]))
    assert again == found.tolist()


def test_the_last_token_is_the_callers_choice(greedy):
    greedy.prefill(PROMPT)
    whole = greedy.decode(never)
    greedy.prefill(PROMPT)
    third = int(whole[2])
    stopped = greedy.decode(lambda token: token == third)
    assert stopped.tolist() == whole[: whole.tolist().index(third) + 1].tolist()


def test_nothing_of_an_earlier_prompt_is_left(greedy):
    greedy.prefill(PROMPT)
    first = greedy.decode(never).tolist()
    greedy.prefill(token_ids(range(60, 100)))
    greedy.decode(never)
    greedy.prefill(PROMPT)
    assert greedy.decode(never).tolist() == first


@pytest.mark.parametrize(
    "ids", [[], [-1], [10**6], list(range(20, 30)) * 100], ids=["empty", "negative", "unknown", "too long"]
)
def test_bad_prompts_are_refused(greedy, ids):
    with pytest.raises(RequestError):
        greedy.prefill(token_ids(ids))


def test_the_model_outlives_the_decoder(model, open_denoiser):
    GreedyDecoder(model, open_denoiser.mask, threads=1, max_tokens=4).close()
    second = GreedyDecoder(model, open_denoiser.mask, threads=1, max_tokens=4)
    second.prefill(PROMPT)
    assert len(second.decode(never)) > 0
    second.close()
