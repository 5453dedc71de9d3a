"""The table of fill-in-the-middle formats: how a model's family is found, and prompts as text."""

import pytest

from dg_lsp.canvas.fim import FIM_FAMILIES, find_fim
from dg_lsp.canvas.spec import FimOrder, FimTokens, SpecialTokens
from dg_lsp.settings import FIMS

STARS = ("<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<filename>")
STARS2 = ("<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<file_sep>", "<repo_name>")
QWEN = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|repo_name|>", "<|file_sep|>")
GEMMA = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|file_separator|>")
GRANITE = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|filename|>", "<|start_of_role|>")
SEED = ("<[fim-suffix]>", "<[fim-prefix]>", "<[fim-middle]>")
MISTRAL = ("[INST]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]")
LLAMA = ("▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>")
GUESS = FimTokens(1, 2, 3, FimOrder.PREFIX_FIRST)
"""What llama.cpp finds by common spellings."""


def fim_of(tokens, name="", *, architecture="llama", filename="model", **metadata):
    metadata = {"general.architecture": architecture, "general.name": name, **metadata}
    spellings = {token: number for number, token in enumerate(tokens)}
    return find_fim(metadata, filename, SpecialTokens((), (), fim=GUESS, spellings=spellings))


MELLUM = "Mellum 4b Base"
BASENAME = {"general.basename": "Mellum-4b"}
BASE_MODEL = {"general.base_model.0.name": MELLUM}
QWEN_MOE = {"name": "Qwen3 Coder 30B A3B Instruct", "architecture": "qwen3moe"}


@pytest.mark.parametrize(
    ("fim", "family", "evidence"),
    [
        pytest.param(fim_of(STARS, MELLUM, filename="starcoder-1b"), "mellum", "metadata", id="name before file name"),
        pytest.param(fim_of(STARS, **BASENAME), "mellum", "metadata", id="base name"),
        pytest.param(fim_of(STARS, "Mine", **BASE_MODEL), "mellum", "metadata", id="base model"),
        pytest.param(fim_of(STARS, filename="Mellum-4b-base.Q8_0"), "mellum", "file name", id="file name"),
        pytest.param(fim_of(STARS2, filename="mellum"), "starcoder2", "vocabulary", id="vocabulary before file name"),
        pytest.param(fim_of(STARS2, architecture="starcoder2"), "starcoder2", "metadata", id="StarCoder2"),
        pytest.param(fim_of(STARS, architecture="granite"), "granite-code", "metadata", id="Granite Code"),
        pytest.param(fim_of(GRANITE, architecture="granitehybrid"), "granite", "metadata", id="Granite"),
        pytest.param(fim_of(GRANITE), "granite", "vocabulary", id="tokens of Granite"),
        pytest.param(fim_of(QWEN, "Qwen3 8B"), "qwen", "vocabulary", id="tokens of Qwen"),
        pytest.param(fim_of(QWEN, **QWEN_MOE), "qwen", "metadata", id="Qwen Coder"),
        pytest.param(fim_of(GEMMA), "codegemma", "vocabulary", id="tokens of CodeGemma"),
        pytest.param(fim_of(SEED), "seed-coder", "vocabulary", id="tokens of Seed-Coder"),
        pytest.param(fim_of(SEED, "zeta-2.1"), "zeta", "metadata", id="Zeta with tokens of Seed-Coder"),
        pytest.param(fim_of(LLAMA), "codellama", "vocabulary", id="tokens of Code Llama"),
        pytest.param(fim_of(MISTRAL, filename="Codestral-22B-v0.1-Q4_K_M"), "codestral", "file name", id="Codestral"),
    ],
)
def test_metadata_decide_before_the_vocabulary_and_the_file_name(fim, family, evidence):
    assert (fim.family, fim.evidence) == (family, evidence)


@pytest.mark.parametrize(
    "fim",
    [
        pytest.param(fim_of(STARS), id="tokens of several families"),
        pytest.param(fim_of(MISTRAL, "Devstral Small"), id="a model of the vendor that was not trained for it"),
        pytest.param(fim_of(STARS[:2], "Mellum"), id="a missing token"),
        pytest.param(fim_of((), "codegemma"), id="no tokens"),
    ],
)
def test_without_a_family_the_tokens_of_the_file_are_used(fim):
    assert fim is GUESS


def test_files_are_comments_if_the_vocabulary_has_no_token_for_them():
    fim = fim_of(STARS[:3], "Mellum")
    assert (fim.family, fim.file, fim.prompt_with_files) == ("mellum", (), ())


@pytest.mark.parametrize("family", FIM_FAMILIES.values(), ids=lambda family: family.name)
def test_a_prompt_as_text_can_be_split_again(family):
    text = family.prompt.format(prefix="a = {x}\nb = ", suffix="\nc = {y}\n")
    assert family.split(text) == ("a = {x}\nb = ", "\nc = {y}\n")
    assert family.split("a = {x}\nb = ") is None
    assert family.sources


def test_each_family_can_be_selected_for_a_remote_model():
    assert {*FIMS} == {"suffix", "none", *FIM_FAMILIES} - {"dg-mini"}
