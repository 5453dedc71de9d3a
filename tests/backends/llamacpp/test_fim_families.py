"""The prompt of each model family is, token by token, the sequence that its authors publish.

Each case is a tiny GGUF file with the family's special tokens and one token for each byte or character. The sequences
are written here as in the sources that `fim_families.toml` names.
"""

from dataclasses import replace

import pytest
from tiny_vocabulary import Model

from dg_lsp.canvas.fim import FIM_FAMILIES
from dg_lsp.canvas.prompt_format import layout_of, takes_snippets
from dg_lsp.canvas.spec import PromptCut, PromptFormat
from dg_lsp.context.window import Prompt, Snippet, Snippets, SnippetSource
from dg_lsp.models.registry import BUNDLED


def files(*chunks, repository=""):
    """Code of other files, in prompt order."""
    snippets = tuple(Snippet(SnippetSource.OPEN_FILES, path, code) for path, code in reversed(chunks))
    return Snippets(snippets, repository)


FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>")
STARS = ("<|endoftext|>", "<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>")
QWEN = Model((*FIM, "<|endoftext|>", "<|im_end|>", "<|repo_name|>", "<|file_sep|>"), "Qwen2.5 Coder 1.5B")
STARCODER2 = Model((*STARS, "<repo_name>", "<file_sep>"), "starcoder2-3b")
CODEGEMMA = Model(("<eos>", "<bos>", *FIM[:3], "<|file_separator|>"), "codegemma-2b", start="<bos>")
GRANITE = Model(
    ("<|end_of_text|>", *FIM, "<|filename|>", "<|reponame|>", "<|start_of_role|>"),
    "Granite 4.0 Micro",
    plain=(*FIM, "<|filename|>", "<|reponame|>"),
)
GRANITE_CODE = Model((*STARS, "<|end_of_text|>", "<filename>", "<reponame>"), "Granite 3.3 8b Base")
MELLUM = Model((*STARS, "<filename>", "<reponame>"), "Mellum 4b Base")
SEED = Model(("<[end▁of▁sentence]>", "<[fim-suffix]>", "<[fim-prefix]>", "<[fim-middle]>"), "Seed Coder 8B Base")
ZETA = Model((*SEED.tokens, "<filename>"), "Zeta 2.1")
DEEPSEEK = Model(
    ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    "deepseek-coder-6.7b-base",
    start="<｜begin▁of▁sentence｜>",
)
CODESTRAL = Model(
    ("<s>", "</s>", "[INST]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]"),
    "Codestral 22B v0.1",
    kind="sentencepiece",
    start="<s>",
)
CODELLAMA = Model(
    ("<s>", "</s>", "▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>"),
    "codellama_codellama-7b-hf",
    kind="sentencepiece",
    start="<s>",
)
SORTING = Prompt("def quicksort(arr):\n    pivot = arr[len(arr) // 2]\n    ", "\n    middle = [x for x in arr]")
SORTED = (
    "<|fim_prefix|>def quicksort(arr):\n    pivot = arr[len(arr) // 2]\n    "
    "<|fim_suffix|>\n    middle = [x for x in arr]<|fim_middle|>"
)
HELLO = Prompt("def print_hello_world():\n    ", "\n    print('Hello world!')")
GREETED = "<fim_prefix>def print_hello_world():\n    <fim_suffix>\n    print('Hello world!')<fim_middle>"
SUM = Prompt("def calculate_sum(a, b):\n", "\n\n# Test the function\nprint(result)", path="example.py")
SUMMED = "<fim_suffix>\n\n# Test the function\nprint(result)<fim_prefix>def calculate_sum(a, b):\n<fim_middle>"
HOLE = Prompt("    left = []\n    right = []\n", "\n        if arr[i] < pivot:")
FILLED = (
    "<｜begin▁of▁sentence｜><｜fim▁begin｜>    left = []\n    right = []\n"
    "<｜fim▁hole｜>\n        if arr[i] < pivot:<｜fim▁end｜>"
)
WORDS = Prompt("PREFIX", "SUFFIX")
SPELLED = "<[fim-suffix]>SUFFIX<[fim-prefix]>PREFIX<[fim-middle]>"
PUBLISHED = [
    pytest.param("qwen", QWEN, SORTING, SORTED, id="Qwen2.5-Coder"),
    pytest.param(
        "qwen",
        QWEN,
        Prompt(
            "    # Student borrows a book",
            "\n    if student.borrow_book(book, library):",
            path="main.py",
            snippets=files(
                ("library.py", "class Book:\n"), ("student.py", "class Student:\n"), repository="library-system"
            ),
        ),
        "<|repo_name|>library-system\n<|file_sep|>library.py\nclass Book:\n<|file_sep|>student.py\nclass Student:\n"
        "<|file_sep|>main.py\n<|fim_prefix|>    # Student borrows a book"
        "<|fim_suffix|>\n    if student.borrow_book(book, library):<|fim_middle|>",
        id="Qwen2.5-Coder, several files",
    ),
    pytest.param(
        "codegemma",
        CODEGEMMA,
        Prompt("import ", "\nif __name__ == '__main__':\n    sys.exit(0)"),
        "<bos><|fim_prefix|>import <|fim_suffix|>\nif __name__ == '__main__':\n    sys.exit(0)<|fim_middle|>",
        id="CodeGemma",
    ),
    pytest.param(
        "codegemma",
        CODEGEMMA,
        Prompt("x = ", "", path="path/to/the/second/file.py", snippets=files(("path/to/the/first/file.py", "y = 1\n"))),
        "<bos>path/to/the/first/file.py\ny = 1\n<|file_separator|>path/to/the/second/file.py\n"
        "<|fim_prefix|>x = <|fim_suffix|><|fim_middle|>",
        id="CodeGemma, several files",
    ),
    pytest.param(
        "granite",
        GRANITE,
        Prompt("\ndef fibonacci(n):\n    result =\n", "\n    return result\n"),
        "<|fim_prefix|>\ndef fibonacci(n):\n    result =\n<|fim_suffix|>\n    return result\n<|fim_middle|>",
        id="Granite 4",
    ),
    pytest.param("granite-code", GRANITE_CODE, HELLO, GREETED, id="Granite 3.3"),
    pytest.param("granite-code", replace(MELLUM, name="Granite 8b Code Base"), HELLO, GREETED, id="Granite Code"),
    pytest.param("mellum", MELLUM, SUM, SUMMED, id="Mellum"),
    pytest.param(
        "mellum",
        MELLUM,
        replace(SUM, snippets=files(("utils.py", "def multiply(x, y):\n"), ("config.py", "DEBUG = True\n"))),
        "<filename>utils.py\ndef multiply(x, y):\n<filename>config.py\nDEBUG = True\n<filename>example.py\n" + SUMMED,
        id="Mellum, several files",
    ),
    pytest.param(
        "starcoder2",
        STARCODER2,
        Prompt("prefix", "suffix"),
        "<fim_prefix>prefix<fim_suffix>suffix<fim_middle>",
        id="StarCoder2",
    ),
    pytest.param(
        "starcoder2",
        STARCODER2,
        Prompt(
            "code1_pre", "code1_suf", path="filepath1", snippets=files(("filepath0", "code0\n"), repository="reponame")
        ),
        "<repo_name>reponame<file_sep>filepath0\ncode0\n<file_sep><fim_prefix>filepath1\ncode1_pre"
        "<fim_suffix>code1_suf<fim_middle>",
        id="StarCoder2, several files",
    ),
    pytest.param("starcoder", replace(MELLUM, name="Starcoderbase"), HELLO, GREETED, id="StarCoder"),
    pytest.param(
        "santacoder",
        Model(("<|endoftext|>", "<fim-prefix>", "<fim-middle>", "<fim-suffix>"), "SantaCoder"),
        HELLO,
        "<fim-prefix>def print_hello_world():\n    <fim-suffix>\n    print('Hello world!')<fim-middle>",
        id="SantaCoder",
    ),
    pytest.param("deepseek", DEEPSEEK, HOLE, FILLED, id="DeepSeek-Coder"),
    pytest.param(
        "codestral",
        CODESTRAL,
        Prompt("def f(", "return a + b"),
        "<s>[SUFFIX]return▁a▁+▁b[PREFIX]▁def▁f(",
        id="Codestral",
    ),
    pytest.param(
        "codellama",
        CODELLAMA,
        Prompt("def f(x):\n  ", "return y\n"),
        "<s>▁<PRE>▁def▁f(x):\n▁▁▁<SUF>return▁y\n▁<MID>",
        id="Code Llama",
    ),
    pytest.param(
        "zeta",
        ZETA,
        Prompt("before\n", "after\n", path="path/to/target_file.py", snippets=files(("related/file.py", "text\n"))),
        "<[fim-suffix]>after\n<[fim-prefix]><filename>related/file.py\ntext\n<filename>path/to/target_file.py\n"
        "before\n<[fim-middle]>",
        id="Zeta, several files",
    ),
    pytest.param("seed-coder", SEED, WORDS, SPELLED, id="Seed-Coder"),
]


@pytest.mark.parametrize(("family", "model", "prompt", "sequence"), PUBLISHED)
def test_a_prompt_is_the_published_sequence(open_vocabulary, family, model, prompt, sequence):
    spec, tokenizer = open_vocabulary(model)
    assert (spec.prompt_format, spec.fim.family, spec.fim.evidence) == (PromptFormat.FIM, family, "metadata")
    published = replace(spec, fim=replace(spec.fim, cut=PromptCut.CHARACTER))  # the authors' code ends at the cursor
    layout = layout_of(prompt, tokenizer, published, 1000)
    assert layout.prompt_ids.tolist() == model.sequence(sequence)
    assert tokenizer.decode(layout.before_ids).decode().endswith(prompt.prefix)
    assert tokenizer.decode(layout.after_ids).decode() == prompt.suffix


def test_every_family_is_held_against_its_published_sequence():
    cases = [case.values for case in PUBLISHED]
    assert {family for family, *_ in cases} == {*FIM_FAMILIES} - {BUNDLED[0].name}
    with_files = {family for family, _, prompt, _ in cases if prompt.snippets.chunks}
    assert with_files == {name for name, family in FIM_FAMILIES.items() if family.file}


@pytest.mark.parametrize("model", [DEEPSEEK, SEED, GRANITE, CODELLAMA], ids=lambda model: model.name)
def test_without_a_format_for_several_files_they_are_comments_before_the_prefix(open_vocabulary, model):
    spec, tokenizer = open_vocabulary(model)
    prompt = Prompt("x = ", "\n", path="b.py", language="python", snippets=files(("a.py", "a = 1\n")))
    layout = layout_of(prompt, tokenizer, spec, 1000)
    assert tokenizer.decode(layout.before_ids) == b"# a.py\na = 1\n# b.py\nx = "
    assert tokenizer.decode(layout.after_ids) == b"\n"
    assert not takes_snippets(spec, "auto")


@pytest.mark.parametrize(
    ("model", "ends"),
    [
        (QWEN, ("<|file_sep|>", "<|fim_pad|>", "<|repo_name|>", "<|fim_prefix|>", "<|endoftext|>", "<|im_end|>")),
        (STARCODER2, ("<file_sep>", "<|endoftext|>")),
        (CODEGEMMA, ("<|file_separator|>", "<eos>")),
        (MELLUM, ("<filename>", "<|endoftext|>")),
        (GRANITE, ("<|end_of_text|>", "<|filename|>")),
        (CODELLAMA, ("▁<EOT>",)),
        (replace(CODELLAMA, plain=("▁<EOT>",)), ("▁<EOT>",)),
    ],
    ids=lambda value: value.name if isinstance(value, Model) else "",
)
def test_the_end_tokens_of_the_family_end_a_fill(open_vocabulary, model, ends):
    spec, _ = open_vocabulary(model)
    ids = {model.vocabulary.index(token) for token in ends}
    assert ids <= {*spec.end_ids}
    assert not ids & {*spec.banned_ids}
