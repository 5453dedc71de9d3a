"""OpenAI's Python client: what it reads, retries and cancels."""

import openai
import pytest
from chatty import HI, chatty
from http_server import metric, wait_for_disconnect

from dg_lsp.backends.scripted import ScriptedDenoiser

GAP = {"model": "any", "prompt": "def total(items):\n    return ", "suffix": "\n"}
MESSAGES = {"model": "any", **HI}
ANSWER = "One line.\n\nAnd a second one, which is longer than the longest canvas: it goes on in another. é😋"
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture
def connect():
    """OpenAI's client of a server; closed with the test."""
    clients = []

    def call(client, **options):
        clients.append(openai.OpenAI(base_url=f"http://127.0.0.1:{client.port}/v1", api_key="none", **options))
        return clients[-1]

    yield call
    for client in clients:
        client.close()


def test_a_completion_is_read_whole_and_as_a_stream(start, connect):
    client = connect(start(ScriptedDenoiser("sum(items)")))
    done = client.completions.create(**GAP, max_tokens=32, temperature=0.2, top_p=0.9, user="me")
    [choice] = done.choices
    assert (choice.text, choice.finish_reason, choice.index) == ("sum(items)", "stop", 0)
    assert (done.object, done.model) == ("text_completion", "scripted")
    usage, timings = done.usage, done.model_extra["timings"]
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert timings["predicted_n"] == usage.completion_tokens == len("sum(items)") + 1
    assert timings["prompt_n"] + timings["cache_n"] == usage.prompt_tokens
    assert timings["cache_n"] == usage.prompt_tokens_details.cached_tokens
    assert done.model_extra["diffusion"]["steps"] > 0
    with client.completions.create(**GAP, **STREAMED) as stream:
        *pieces, last = stream
    assert "".join(piece.choices[0].text for piece in pieces) == "sum(items)"
    assert [piece.choices[0].finish_reason for piece in pieces] == [None, "stop"]
    assert (last.choices, last.usage.completion_tokens) == ([], len("sum(items)") + 1)


def test_a_streamed_chat_is_read(start, connect):
    client = connect(start(chatty(ANSWER, tokens_per_step=3)))
    with client.chat.completions.create(**MESSAGES, **STREAMED) as stream:
        *pieces, last = stream
    assert "".join(piece.choices[0].delta.content for piece in pieces) == ANSWER
    assert len(pieces) > 10
    assert last.usage.completion_tokens == len(ANSWER.encode()) + 1


def test_the_client_does_not_retry_what_the_model_does_not_support(start, connect):
    client = start(ScriptedDenoiser("x"))
    with pytest.raises(openai.InternalServerError, match="follows no instructions") as caught:
        connect(client).chat.completions.create(**MESSAGES)
    assert caught.value.status_code == 501
    assert metric(client, 'dg_lsp_requests_total{path="/v1/chat/completions",status="501"}') == 1


def test_an_error_event_of_a_stream_is_raised(start, connect):
    denoiser = chatty("abcdef", tokens_per_step=1)
    predict = denoiser.predict

    def fail_later(*args):
        if denoiser.num_steps == 3:
            raise RuntimeError
        return predict(*args)

    denoiser.predict = fail_later
    with pytest.raises(openai.APIError, match="internal error: RuntimeError") as caught:
        list(connect(start(denoiser)).chat.completions.create(**MESSAGES, stream=True))
    assert caught.value.code == "500"


def test_closing_a_stream_stops_the_model(start, connect):
    denoiser = chatty(" ".join(map(str, range(1000))), step_seconds=0.01, tokens_per_step=1)
    client = start(denoiser)
    with connect(client).chat.completions.create(**MESSAGES, stream=True) as stream:
        next(stream)
    wait_for_disconnect(client)
    assert denoiser.num_steps < 1000
