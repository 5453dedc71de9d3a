"""Settings from mappings; errors name the key and the nearest known key."""

import math

import pytest

from dg_lsp.errors import SettingsError
from dg_lsp.settings import parse_settings


def sampler(table):
    return {"model": {"sampler": {"a": table}}}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        pytest.param({"modle": {}}, r"modle \(did you mean model\?\)", id="unknown group"),
        pytest.param({"threads": 1}, r"threads \(did you mean model.threads\?\)", id="key without its group"),
        pytest.param({"remote": {"key_source": "sk-a b"}}, "must be the name of an env", id="a key, not its source"),
        pytest.param({"completion": {"deadline_ms": "fast"}}, "deadline_ms must be a number", id="wrong type"),
        pytest.param({"completion": {"speculate": 1}}, "completion.speculate must be true or", id="number for a flag"),
        pytest.param({"completion": {"deadline_ms": 0}}, r"^completion.deadline_ms must be > 0", id="out of range"),
        pytest.param({"completion": {"debounce_ms": 2**53}}, "debounce_ms", id="longer than the system can wait"),
        pytest.param({"model": {"idle_seconds": math.inf}}, "idle_seconds", id="for ever"),
        pytest.param({"completion": {"decoder": "sideways"}}, "decoder must be one of auto, ", id="unknown value"),
        pytest.param({"rewrite": {"model": "auto"}}, "rewrite.model must be the name or", id="selected by speed"),
        pytest.param({f"key{number}": 1 for number in range(50_000)}, "; 49992 more", id="many unknown keys"),
        pytest.param({"a\n\x1b]0;x\x07": 1}, r"unknown setting a\\n\\x1b", id="control characters"),
        pytest.param({"completion": {"deadline_ms": 10**400}}, "deadline_ms must be <= ", id="hundreds of digits"),
        pytest.param({"model": {"prompt_attention": "exact"}}, "unknown setting", id="internal field"),
        pytest.param({"remote": {"extra": {"key": "sk-a"}}}, "extra must be a text, not a table$", id="a table"),
        pytest.param({"model": 3}, "^model must be a table$", id="number for a group"),
        pytest.param({"model": {"sampler": {"t_max": 1}}}, "needs a table for each model", id="sampler of no model"),
        pytest.param(sampler({"window": 1}), "sampler.a.window: use canvas_length, ", id="unknown option"),
        pytest.param(sampler({"thinking": 1}), "model.sampler.a.thinking must be true or false", id="no flag"),
        pytest.param(sampler({"prompt_attention": "causal"}), "must be one of auto, exact, per", id="no attention"),
        pytest.param(sampler({"t_max": 99.0}), "model.sampler.a.t_max must be <= 10", id="too warm"),
        pytest.param({"model": {"device": "tpu"}}, "^model.device must be auto, cpu, gpu", id="no device"),
        pytest.param({"remote": {"url": "host:80"}}, r"^remote.url must be an address such as http:", id="no address"),
        pytest.param({"remote": {"url": "http://host:99999"}}, r"^remote.url must be an address such", id="no port"),
        pytest.param({"remote": {"url": "http://[::1"}}, r"^remote.url must be an address such as http:", id="bracket"),
        pytest.param({"privacy": {"exclude_languages": "markdown"}}, "exclude_languages must be a list", id="no list"),
    ],
)
def test_a_bad_value_is_named_in_one_line(tree, message):
    with pytest.raises(SettingsError, match=message) as caught:
        parse_settings(tree)
    assert "\n" not in str(caught.value)
