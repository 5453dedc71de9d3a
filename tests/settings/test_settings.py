"""Settings from mappings and files; errors name the key, the line and the nearest known key."""

import pytest

from dg_lsp.errors import SettingsError
from dg_lsp.settings import Settings, parse_settings, read_settings


def test_absent_keys_keep_their_value():
    assert parse_settings({}) == Settings()
    base = parse_settings({"completion": {"deadline_ms": 250}})  # a whole number is a number of milliseconds
    over = parse_settings({"model": {"threads": 2}}, base)
    assert (over.completion.deadline_ms, over.model.threads, over.model.name) == (250.0, 2, "dg-mini")


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        pytest.param({"modle": {}}, r"modle \(did you mean model\?\)", id="unknown group"),
        pytest.param({"model": {"treads": 1}}, r"model.treads \(did you mean model.threads\?\)", id="unknown key"),
        pytest.param({"threads": 1}, r"threads \(did you mean model.threads\?\)", id="key without its group"),
        pytest.param({"completion": {"deadline_ms": "fast"}}, "completion.deadline_ms", id="wrong type"),
        pytest.param({"model": {"threads": "8"}}, "model.threads", id="number in quotes"),
        pytest.param({"model": {"threads": True}}, "model.threads", id="flag for a number"),
        pytest.param({"completion": {"speculate": 1}}, "completion.speculate", id="number for a flag"),
        pytest.param({"completion": {"deadline_ms": 0}}, "deadline_ms", id="out of range"),
        pytest.param({"completion": {"decoder": "sideways"}}, "decoder", id="unknown value"),
        pytest.param({"fill": 3}, "fill", id="unknown key without a group"),
        pytest.param({"model": None}, "model", id="null"),
        pytest.param({"model": 3}, "model", id="number for a group"),
    ],
)
def test_a_bad_value_is_named_in_one_line(tree, message):
    with pytest.raises(SettingsError, match=message) as caught:
        parse_settings(tree)
    assert "\n" not in str(caught.value)


def test_the_line_of_an_unknown_key_in_a_file_is_named(tmp_path):
    path = tmp_path / "dg-lsp.toml"
    path.write_text('[model]\nname = "other.gguf"\n[completion]\nmax_tokens = 8\n')
    settings = read_settings(path)
    assert (settings.model.name, settings.completion.max_tokens) == ("other.gguf", 8)
    path.write_text("[model]\nthreads = 1\n\n[completion]\nthreads = 2\n")
    with pytest.raises(SettingsError, match=r"dg-lsp\.toml:5: unknown setting completion\.threads"):
        read_settings(path)


@pytest.mark.parametrize("content", [b"model = ", b"\xff\xfe", None], ids=["no TOML", "no UTF-8", "missing"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, content):
    path = tmp_path / "dg-lsp.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=r"dg-lsp\.toml"):
        read_settings(path)
