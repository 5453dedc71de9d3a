import pytest

from dg_lsp.context.languages import LANGUAGES, PLAIN, grammar_of, language_of


@pytest.mark.parametrize("language_id", LANGUAGES)
def test_every_grammar_in_the_table_loads_once(language_id):
    module = LANGUAGES[language_id].grammar_module
    assert grammar_of(module) is grammar_of(module)


def test_an_unknown_language_is_plain_text():
    assert language_of("brainfuck") is PLAIN


@pytest.mark.parametrize(
    ("line", "indentation"),
    [
        pytest.param("def f(", "", id="a function"),
        pytest.param("    async def f():", "    ", id="a method"),
        pytest.param("class A:", "", id="a class"),
        pytest.param("class A[T](B):", "", id="a generic class"),
        pytest.param("class of things", None, id="prose"),
        pytest.param("x = def_(1)", None, id="not at the start"),
    ],
)
def test_python_landmarks(line, indentation):
    landmark = LANGUAGES["python"].landmark
    assert landmark is not None
    match = landmark.search(f"x\n{line}\n")
    assert (match["indentation"] if match else None) == indentation
