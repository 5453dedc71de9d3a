"""Chat templates of published models: their prompts are what transformers makes of them, token by token.

Each case is a tiny GGUF file with the template and the special tokens of a model. The templates, in the folder
`chat_templates`, are verbatim; the expected texts were computed by transformers 5.23 (`apply_chat_template`).
"""

from pathlib import Path

import pytest
from tiny_vocabulary import Model

from dg_lsp.canvas.chat import Role, Turn, chat_layout, raw_layout
from dg_lsp.canvas.chat_template import MAX_SOURCE
from dg_lsp.errors import ModelUnsupportedError, RequestError


def published(name):
    path = Path(__file__).parent / "chat_templates" / f"{name}.jinja"
    return path.read_text(encoding="utf-8").removesuffix("\n")


QWEN = published("qwen")
GEMMA = published("gemma")


QWEN_MODEL = Model(("<|endoftext|>", "<|im_start|>", "<|im_end|>"), "Qwen2.5 Coder 7B Instruct", end="<|im_end|>")
GEMMA_MODEL = Model(("<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"), "gemma-2-2b-it", start="<bos>", end="<eos>")
LLAMA_MODEL = Model(
    ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "Meta Llama 3 8B Instruct",
    start="<|begin_of_text|>",
    end="<|eot_id|>",
)
MISTRAL_MODEL = Model(("<s>", "</s>"), "Mistral 7B Instruct v0.2", start="<s>", end="</s>")
TALK = (Turn(Role.USER, "Is it 4? "), Turn(Role.ASSISTANT, " Yes.\n"), Turn(Role.USER, "And a*b?"))
BRIEF_TALK = (Turn(Role.SYSTEM, "Be brief."), *TALK)


@pytest.mark.parametrize(
    ("model", "template", "turns", "text"),
    [
        pytest.param(
            QWEN_MODEL,
            QWEN,
            TALK,
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\nIs it 4? <|im_end|>\n<|im_start|>assistant\n Yes.\n<|im_end|>\n"
            "<|im_start|>user\nAnd a*b?<|im_end|>\n<|im_start|>assistant\n",
            id="Qwen",
        ),
        pytest.param(
            LLAMA_MODEL,
            published("llama3"),
            BRIEF_TALK,
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nIs it 4?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nYes.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nAnd a*b?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            id="Llama 3 with instructions of the system",
        ),
        pytest.param(
            GEMMA_MODEL,
            GEMMA,
            TALK,
            "<bos><start_of_turn>user\nIs it 4?<end_of_turn>\n<start_of_turn>model\nYes.<end_of_turn>\n"
            "<start_of_turn>user\nAnd a*b?<end_of_turn>\n<start_of_turn>model\n",
            id="Gemma",
        ),
        pytest.param(
            MISTRAL_MODEL,
            published("mistral"),
            TALK,
            "<s>[INST] Is it 4?  [/INST] Yes.\n</s>[INST] And a*b? [/INST]",
            id="Mistral",
        ),
    ],
)
def test_a_conversation_gives_the_prompt_of_transformers(open_vocabulary, model, template, turns, text):
    spec, tokenizer = open_vocabulary(model, tokenizer__chat_template=template)
    assert chat_layout(turns, tokenizer, spec).prompt_ids.tolist() == model.sequence(text)


def test_a_raw_text_has_its_special_tokens_and_the_first_token(open_vocabulary):
    spec, tokenizer = open_vocabulary(GEMMA_MODEL, tokenizer__chat_template=GEMMA)
    ids = raw_layout("<start_of_turn>user\nhi", tokenizer, spec).prompt_ids
    assert ids.tolist() == GEMMA_MODEL.sequence("<bos><start_of_turn>user\nhi")


@pytest.mark.parametrize(
    ("name", "is_instruct"),
    [
        ("Qwen2.5 Coder 7B Instruct", True),
        ("Qwen2.5 Coder 7B", False),
        ("Gemma 3 270m", False),
        ("gemma-3-270m-it", True),
        ("Llama 2 7b Chat Hf", True),
        ("DeepSeek R1 Distill Qwen 7B", True),
        ("", True),
    ],
)
def test_the_template_of_a_base_model_is_not_used(open_vocabulary, name, is_instruct):
    spec, _ = open_vocabulary(Model(("<|endoftext|>",), name), tokenizer__chat_template=QWEN)
    assert spec.follows_instructions == is_instruct


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for", "unexpected"),
        ("{{ messages[7].content }}", "undefined|has no element"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "seconds"),
        ("{{ 'x' * 9999999999 }}", "memory"),
        ("{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}", "writes more than"),
        ("{#" + "x" * MAX_SOURCE + "#}", "characters"),
    ],
    ids=["damaged", "wrong", "unsafe", "endless", "memory", "long text", "huge"],
)
def test_a_template_that_cannot_be_used_is_reported(open_vocabulary, template, message):
    spec, tokenizer = open_vocabulary(QWEN_MODEL, tokenizer__chat_template=template)
    with pytest.raises(ModelUnsupportedError, match=rf"^model has a chat template that cannot be used.*{message}.*use"):
        chat_layout(TALK, tokenizer, spec)


def test_a_template_refuses_a_conversation(open_vocabulary):
    spec, tokenizer = open_vocabulary(GEMMA_MODEL, tokenizer__chat_template=GEMMA)
    with pytest.raises(RequestError, match="System role not supported"):
        chat_layout(BRIEF_TALK, tokenizer, spec)
