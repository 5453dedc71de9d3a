import pytest

from dg_lsp.errors import SettingsError
from dg_lsp.settings import Settings, parse_settings, read_settings


def test_nothing_said_is_the_defaults():
    assert parse_settings({}) == Settings()


def test_what_is_absent_keeps_the_value_it_had():
    base = parse_settings({"completion": {"deadline_ms": 250.0}})
    over = parse_settings({"model": {"threads": 2}}, base)
    assert over.completion.deadline_ms == 250.0
    assert over.model.threads == 2
    assert over.model.name == "dg-mini"


def test_a_whole_number_is_a_number_of_milliseconds():
    assert parse_settings({"completion": {"deadline_ms": 250}}).completion.deadline_ms == 250.0


@pytest.mark.parametrize(
    ("tree", "named"),
    [
        pytest.param({"modle": "x"}, "modle", id="unknown key"),
        pytest.param({"completion": {"deadline": 1}}, "deadline", id="unknown key inside"),
        pytest.param({"completion": {"deadline_ms": "fast"}}, "completion.deadline_ms", id="wrong type"),
        pytest.param({"model": {"threads": "8"}}, "model.threads", id="a number in quotes"),
        pytest.param({"model": {"threads": True}}, "model.threads", id="a flag for a number"),
        pytest.param({"completion": {"check_syntax": 1}}, "completion.check_syntax", id="a number for a flag"),
        pytest.param({"completion": {"deadline_ms": 0}}, "deadline_ms", id="out of range"),
        pytest.param({"completion": {"order": "sideways"}}, "order", id="not one of the words"),
        pytest.param({"fill": 3}, "fill", id="a number for a table"),
        pytest.param({"model": None}, "model", id="null"),
    ],
)
def test_a_bad_value_is_named_in_one_line(tree, named):
    with pytest.raises(SettingsError) as caught:
        parse_settings(tree)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_toml_file(tmp_path):
    path = tmp_path / "dg-lsp.toml"
    path.write_text('[model]\nname = "other.gguf"\n[completion]\nmax_tokens = 8\n')
    settings = read_settings(path)
    assert (settings.model.name, settings.completion.max_tokens) == ("other.gguf", 8)


@pytest.mark.parametrize("content", [b"model = ", b"\xff\xfe", None], ids=["no TOML", "no UTF-8", "missing"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, content):
    path = tmp_path / "dg-lsp.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=r"dg-lsp\.toml"):
        read_settings(path)
