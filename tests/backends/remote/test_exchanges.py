"""Exchanges with vLLM, SGLang and other servers, replayed over a real socket: see the head of `exchanges.toml`."""

import json
import re
import tomllib
from contextlib import closing
from pathlib import Path

import pytest
from lying_server import LyingServer, events, reply

from dg_lsp.backends.remote.dialects import RemoteQuery, RemoteTask
from dg_lsp.context.window import Prompt
from dg_lsp.errors import RemoteError

from .conftest import last_answer

EXCHANGES = tomllib.loads(Path(__file__).with_name("exchanges.toml").read_text(encoding="utf-8"))["exchange"]
PAGE = Path(__file__).parents[3] / "docs/howto/engines.md"
QUERY = RemoteQuery(RemoteTask.FILL, Prompt("def area(w, h):\n    return ", "\n", path="a.py", language="python"), 64)


def replay(exchange, model_of):
    """The answer of a server with the response of an exchange, or its error; and the request that it received."""
    stream = exchange.get("events")
    response = events(*stream) if stream else reply(exchange["body"], exchange.get("status", "200 OK"))
    with closing(LyingServer(response)) as server:
        try:
            return last_answer(model_of(server.url, **exchange["settings"]), QUERY), server.requests[0]
        except RemoteError as error:
            return error, server.requests[0]


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange["id"])
def test_an_exchange_with_an_engine_gives_its_answer_or_names_the_setting_to_change(exchange, model_of):
    answer, request = replay(exchange, model_of)
    sent = json.loads(request.partition(b"\r\n\r\n")[2])
    assert {name: sent.get(name) for name in exchange.get("sent", ())} == exchange.get("sent", {})
    assert not set(exchange.get("absent", ())) & set(sent)
    if "error" in exchange:
        assert exchange["error"] in str(answer)
        return
    assert (answer.text, answer.is_finished) == (exchange["text"], exchange["finished"])
    assert [answer.prompt_tokens, answer.cached_tokens, answer.output_tokens] == exchange["counts"]


def test_each_documented_configuration_has_an_exchange():
    examples = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    documented = [tomllib.loads(example)["remote"] for example in examples]
    assert len(documented) > 3
    for settings in documented:
        assert settings.pop("url").startswith("http://127.0.0.1:")
        assert any(exchange["settings"] == settings and "text" in exchange for exchange in EXCHANGES), settings
