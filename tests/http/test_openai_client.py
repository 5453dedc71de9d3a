"""OpenAI's Python client: what it reads, retries and cancels."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from chatty import chatty
from http_server import TIMEOUT, Starter, metric, wait_for_disconnect, wait_until

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.engine.engine import LocalEngine
from dg_lsp.http.auth import AccessRules

GAP = {"model": "any", "prompt": "def total(items):\n    return ", "suffix": "\n"}
MESSAGES = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}
ANSWER = "One line.\n\nAnd a second one, which is longer than the longest canvas: it goes on in another. é😋"
LONG = " ".join(map(str, range(1000)))


def url(client):
    return f"http://127.0.0.1:{client.port}/v1"


@pytest.fixture
def connect():
    """OpenAI's client of a server; closed with the test."""
    made = []

    def call(client, **more):
        made.append(openai.OpenAI(base_url=url(client), api_key="none", **more))
        return made[-1]

    yield call
    for one in made:
        one.close()


def client_of(denoiser):
    starter = Starter()
    with openai.OpenAI(base_url=url(starter(denoiser)), api_key="none", max_retries=0) as client:
        yield client
    starter.stop()


@pytest.fixture(scope="module")
def completing():
    yield from client_of(ScriptedDenoiser("sum(items)"))


@pytest.fixture(scope="module")
def chatting():
    yield from client_of(chatty(ANSWER, tokens_per_step=3))


def num_responses(client, path, status):
    return metric(client, f'dg_lsp_requests_total{{path="{path}",status="{status}"}}')


def test_completion(completing):
    done = completing.completions.create(**GAP, max_tokens=32, temperature=0.2, top_p=0.9, user="me")
    [choice] = done.choices
    assert (choice.text, choice.finish_reason, choice.index) == ("sum(items)", "stop", 0)
    assert (done.object, done.model) == ("text_completion", "scripted")
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens
    assert done.usage.prompt_tokens_details.cached_tokens <= done.usage.prompt_tokens
    assert done.model_extra["timings"]["predicted_n"] == len("sum(items)") + 1


def test_streamed_completion_with_usage(completing):
    with completing.completions.create(**GAP, stream=True, stream_options={"include_usage": True}) as stream:
        *pieces, last = stream
    assert "".join(one.choices[0].text for one in pieces) == "sum(items)"
    assert [one.choices[0].finish_reason for one in pieces] == [None, "stop"]
    assert (last.choices, last.usage.completion_tokens) == ([], len("sum(items)") + 1)


def test_drafts_as_an_extra_field(completing):
    with completing.completions.create(**GAP, stream=True, extra_body={"diffusing": True}) as stream:
        texts = [one.choices[0].text for one in stream]
    assert texts[-1] == "sum(items)"
    assert len(texts) > 2


def test_chat(chatting):
    done = chatting.chat.completions.create(**MESSAGES, max_completion_tokens=500)
    [choice] = done.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", ANSWER, "stop")
    assert not choice.message.tool_calls


def test_streamed_chat_with_usage(chatting):
    with chatting.chat.completions.create(**MESSAGES, stream=True, stream_options={"include_usage": True}) as stream:
        *pieces, last = stream
    assert "".join(one.choices[0].delta.content for one in pieces) == ANSWER
    assert len(pieces) > 10
    assert last.usage.completion_tokens == len(ANSWER.encode()) + 1


def test_the_clients_stream_helper(chatting):
    with chatting.chat.completions.stream(**MESSAGES) as stream:
        stream.until_done()
        assert stream.get_final_completion().choices[0].message.content == ANSWER


def test_models(completing):
    [model] = completing.models.list().data
    assert (model.id, model.object, model.owned_by) == ("scripted", "model", "dg-lsp")


@pytest.mark.parametrize(("more", "field"), [({"n": 99}, "n"), ({"prompt": ["a", "b"]}, "prompt"), ({"n": "x"}, "n")])
def test_an_invalid_field_is_a_bad_request_error(completing, more, field):
    with pytest.raises(openai.BadRequestError, match=f"Field '{field}'") as caught:
        completing.completions.create(**{**GAP, **more})
    error = caught.value
    assert (error.status_code, error.param, error.code, error.type) == (400, field, "400", "invalid_request_error")


def test_an_unknown_endpoint_is_a_not_found_error(completing):
    with pytest.raises(openai.NotFoundError, match="unknown path"):
        completing.embeddings.create(model="m", input="x")


def test_the_clients_api_key(start, connect):
    client = start(ScriptedDenoiser("x"), rules=AccessRules(api_key="sesame"))
    with pytest.raises(openai.AuthenticationError, match="requires a key"):
        connect(client).models.list()
    assert connect(client).with_options(api_key="sesame").models.list().data[0].id == "scripted"


def test_the_client_does_not_retry_what_the_model_does_not_support(start, connect):
    client = start(ScriptedDenoiser("x"))
    with pytest.raises(openai.InternalServerError, match="follows no instructions") as caught:
        connect(client).chat.completions.create(**MESSAGES)
    assert caught.value.status_code == 501
    assert num_responses(client, "/v1/chat/completions", 501) == 1


def test_the_client_retries_while_the_model_loads(start, connect):
    may_open = threading.Event()

    def open_engine(settings):
        assert may_open.wait(TIMEOUT)
        denoiser = ScriptedDenoiser("x")
        return LocalEngine(denoiser, denoiser.tokenizer, settings.completion)

    client = start(open_engine=open_engine, is_waited=False)
    with pytest.raises(openai.InternalServerError, match="Loading model"):
        connect(client, max_retries=0).completions.create(**GAP)
    with ThreadPoolExecutor() as pool:
        reply = pool.submit(connect(client, max_retries=10).completions.create, **GAP)
        wait_until(lambda: num_responses(client, "/v1/completions", 503) == 2)
        may_open.set()
        assert reply.result(TIMEOUT).choices[0].text == "x"


def test_the_client_does_not_retry_a_replaced_request(start, connect, gated):
    denoiser = gated("x")
    client = start(denoiser)
    body = {"language": "python", "user": "u", "segments": {"prefix": "a", "suffix": "", "filepath": "a.py"}}
    with ThreadPoolExecutor() as pool:
        create = connect(client, max_retries=5).completions.create
        older = pool.submit(create, model="m", prompt="", extra_body=body)
        assert denoiser.is_inside.wait(TIMEOUT)
        newer = {**body, "segments": {**body["segments"], "prefix": "ab"}}
        newest = pool.submit(client.post, "/v1/completions", newer)
        with pytest.raises(openai.APIStatusError, match="replaced") as caught:
            older.result(TIMEOUT)
        denoiser.go_on.set()
        assert newest.result(TIMEOUT).status == 200
    assert caught.value.status_code == 499
    assert num_responses(client, "/v1/completions", 499) == 1


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
    client = start(denoiser := chatty(LONG, step_seconds=0.01, tokens_per_step=1))
    with connect(client).chat.completions.create(**MESSAGES, stream=True) as stream:
        next(stream)
    wait_for_disconnect(client)
    assert denoiser.num_steps < 1000


def test_the_clients_timeout_stops_the_model(start, connect, gated):
    denoiser = gated(LONG)
    client = start(denoiser)
    with pytest.raises(openai.APITimeoutError):
        connect(client, timeout=1.0, max_retries=0).completions.create(**GAP)
    wait_for_disconnect(client)
    denoiser.go_on.set()


def test_cancelling_a_task_of_the_async_client_stops_the_model(start, gated):
    denoiser = gated("x")
    client = start(denoiser)

    async def cancel():
        async with openai.AsyncOpenAI(base_url=url(client), api_key="none") as asynchronous:
            task = asyncio.create_task(asynchronous.completions.create(**GAP))
            await asyncio.to_thread(denoiser.is_inside.wait, TIMEOUT)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancel())
    wait_for_disconnect(client)
    denoiser.go_on.set()
