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


def found(tokens, name="", *, architecture="llama", filename="model", **metadata):
    metadata = {"general.architecture": architecture, "general.name": name, **metadata}
    spellings = {token: number for number, token in enumerate(tokens)}
    return find_fim(metadata, filename, SpecialTokens((), (), fim=GUESS, spellings=spellings))


@pytest.mark.parametrize(
    ("fim", "family", "evidence"),
    [
        (found(STARS, "Mellum 4b Base", filename="starcoder-1b"), "mellum", "metadata"),
        (found(STARS, **{"general.basename": "Mellum-4b"}), "mellum", "metadata"),
        (found(STARS, "Mine", **{"general.base_model.0.name": "Mellum 4b Base"}), "mellum", "metadata"),
        (found(STARS, filename="Mellum-4b-base.Q8_0"), "mellum", "file name"),
        (found(STARS2, "Mine", filename="mellum"), "starcoder2", "vocabulary"),
        (found(STARS2, architecture="starcoder2"), "starcoder2", "metadata"),
        (found(STARS, architecture="granite"), "granite-code", "metadata"),
        (found(GRANITE, architecture="granitehybrid"), "granite", "metadata"),
        (found(GRANITE), "granite", "vocabulary"),
        (found(QWEN, "Qwen3 8B"), "qwen", "vocabulary"),
        (found(QWEN, "Qwen3 Coder 30B A3B Instruct", architecture="qwen3moe"), "qwen", "metadata"),
        (found(GEMMA), "codegemma", "vocabulary"),
        (found(SEED), "seed-coder", "vocabulary"),
        (found(SEED, "zeta-2.1"), "zeta", "metadata"),
        (found(LLAMA), "codellama", "vocabulary"),
        (found(MISTRAL, filename="Codestral-22B-v0.1-Q4_K_M"), "codestral", "file name"),
    ],
)
def test_metadata_decide_before_the_vocabulary_and_the_file_name(fim, family, evidence):
    assert (fim.family, fim.evidence) == (family, evidence)


@pytest.mark.parametrize(
    "fim", [found(STARS), found(MISTRAL, "Devstral Small"), found(STARS[:2], "Mellum"), found((), "codegemma")]
)
def test_without_a_family_the_tokens_of_the_file_are_used(fim):
    assert fim is GUESS


def test_files_are_comments_if_the_vocabulary_has_no_token_for_them():
    fim = found(STARS[:3], "Mellum")
    assert (fim.family, fim.file, fim.prompt_with_files) == ("mellum", (), ())


def test_a_prompt_of_codestral_ends_with_the_prefix():
    fim = found(MISTRAL, "Codestral")
    assert fim.middle_id is None
    assert fim.prompt == (3, "{suffix}", 1, "{prefix}")


@pytest.mark.parametrize("family", FIM_FAMILIES.values(), ids=lambda family: family.name)
def test_a_prompt_as_text_can_be_split_again(family):
    text = family.text("a = {x}\nb = ", "\nc = {y}\n")
    assert family.split(text) == ("a = {x}\nb = ", "\nc = {y}\n")
    assert family.split("a = {x}\nb = ") is None
    assert family.sources


def test_each_family_can_be_selected_for_a_remote_model():
    assert {*FIMS} == {"suffix", "none", *FIM_FAMILIES} - {"dg-mini"}
