"""OpenAI's Python client: what it reads, retries and cancels."""

import openai
import pytest
from chatty import HI, chatty
from http_server import metric
from scripted import ScriptedDenoiser

MESSAGES = {"model": "any", **HI}
USAGE = {"include_usage": True}


@pytest.fixture
def connect():
    clients = []

    def call(client, **options):
        clients.append(openai.OpenAI(base_url=f"http://127.0.0.1:{client.port}/v1", api_key="none", **options))
        return clients[-1]

    yield call
    for client in clients:
        client.close()


@pytest.mark.parametrize("is_chat", [False, True], ids=["completion", "chat"])
def test_an_answer_is_read_whole_and_as_a_stream(start, connect, is_chat):
    answer = "  One line.\n\nAnd a second one, which is longer. é😋\n"
    client = connect(start((chatty if is_chat else ScriptedDenoiser)(answer, tokens_per_step=3)))
    create = client.chat.completions.create if is_chat else client.completions.create
    request = MESSAGES if is_chat else {"model": "any", "prompt": "a", "max_tokens": 500, "user": "me"}
    done = create(**request)
    type(done).model_validate(done.to_dict())  # the client itself does not check types
    [choice] = done.choices
    assert (choice.message.content if is_chat else choice.text, choice.finish_reason) == (answer, "stop")
    usage, timings = done.usage, done.model_extra["timings"]
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert timings["predicted_n"] == usage.completion_tokens == len(answer.encode()) + 1
    assert timings["prompt_n"] + timings["cache_n"] == usage.prompt_tokens
    assert timings["cache_n"] == usage.prompt_tokens_details.cached_tokens
    with create(**request, stream=True, stream_options=USAGE) as stream:
        *pieces, last = stream
    for piece in pieces if is_chat else ():  # a completion has no model of a piece without a finish reason
        type(piece).model_validate(piece.to_dict())
    choices = [piece.choices[0] for piece in pieces]
    assert "".join(choice.delta.content if is_chat else choice.text for choice in choices) == answer
    assert [choice.finish_reason for choice in choices] == [None] * (len(pieces) - 1) + ["stop"]
    assert len(pieces) > 5
    assert (last.choices, last.usage.completion_tokens) == ([], usage.completion_tokens)


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
