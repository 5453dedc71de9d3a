from dataclasses import replace

import pytest

from dg_lsp.backends.scripted import MASK_SPEC, MIDDLE_ID, PREFIX_ID, SUFFIX_ID, ByteTokenizer
from dg_lsp.canvas.prompt_format import in_format, layout_of
from dg_lsp.canvas.spec import DecoderName, ExpectedPasses, PromptFormat
from dg_lsp.context.window import Prompt
from dg_lsp.errors import RequestError

EVERY = replace(
    MASK_SPEC,
    template="gemma4",
    expectations=(ExpectedPasses("block", DecoderName.DIFFUSION, 0.0, 0.0, 3.0, 0.5),),
    name="able",
)


def test_nothing_said_leaves_a_model_its_own():
    assert in_format(EVERY, "") == EVERY
    assert in_format(EVERY, "fim") == EVERY


@pytest.mark.parametrize("name", [name for name in PromptFormat if name != "fim"])
def test_another_format_and_nothing_that_was_measured_in_its_own(name):
    spec = in_format(EVERY, name.value)
    assert spec.prompt_format is name
    assert spec.expectations == ()
    assert spec.has_causal_head is (name is not PromptFormat.INFILL)


@pytest.mark.parametrize(
    ("lacking", "name", "message"),
    [
        (replace(EVERY, fim=None), "fim", "no fill-in-the-middle tokens.* choose infill, prefix, instruct"),
        (replace(EVERY, template=""), "instruct", "no known chat template.* choose fim, infill, prefix"),
        (replace(EVERY, sampling=None, canvas_lengths=()), "infill", "no canvas.* choose fim, prefix, instruct"),
    ],
)
def test_what_a_model_lacks_is_said_and_what_it_can_do(lacking, name, message):
    with pytest.raises(RequestError, match=f"able has {message}"):
        in_format(lacking, name)


def test_an_instruct_model_without_a_chat_gets_the_token_that_all_its_texts_begin_with(monkeypatch):
    tokenizer = ByteTokenizer()
    monkeypatch.setattr(ByteTokenizer, "special", lambda _, spelling: 3 if spelling == "<bos>" else None)
    prompt = Prompt("a = 1\nb = ", "\nc")
    for name in ("infill", "prefix"):
        assert layout_of(prompt, tokenizer, in_format(EVERY, name), 100).prompt_ids[0] == 3
        plain = in_format(replace(EVERY, template=""), name)
        assert layout_of(prompt, tokenizer, plain, 100).prompt_ids[0] == tokenizer.encode("a")[0]


def test_a_place_is_put_as_the_spec_says():
    tokenizer = ByteTokenizer()
    prompt = Prompt("a = 1\nb = ", "\nc")
    encode = tokenizer.encode

    def laid_out(name):
        return layout_of(prompt, tokenizer, in_format(EVERY, name), 100)

    fim = laid_out("fim")
    parts = [SUFFIX_ID, *encode("\nc").tolist(), PREFIX_ID, *encode("a = 1\nb = ").tolist(), MIDDLE_ID]
    assert fim.prompt_ids.tolist() == parts
    assert tokenizer.decode(fim.before_ids) == b"a = 1\nb = "
    assert tokenizer.decode(fim.after_ids) == b"\nc"
    assert laid_out("prefix").prompt_ids.tolist() == encode("a = 1\nb = ").tolist()
    assert tokenizer.decode(laid_out("prefix").before_ids) == b"a = 1\nb = "
    assert tokenizer.decode(laid_out("infill").tail_ids) == b"\nc"
