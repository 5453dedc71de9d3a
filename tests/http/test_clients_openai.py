"""OpenAI's own Python client, against a server on a real socket: what it reads, asks again, and gives up."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from chatty import chatty
from http_server import TIMEOUT, Starter

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.engine.engine import Engine
from dg_lsp.http.gate import Rules

GAP = {"model": "any", "prompt": "def total(items):\n    return ", "suffix": "\n"}
ASKED = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}
ANSWER = "One line.\n\nAnd a second one, which is longer than the longest canvas: it goes on in another. é😋"
LONG = " ".join(map(str, range(1000)))


def url(client):
    return f"http://127.0.0.1:{client.port}/v1"


@pytest.fixture
def opened():
    """OpenAI's client of a server; closed with the test."""
    made = []

    def call(client, **more):
        made.append(openai.OpenAI(base_url=url(client), api_key="none", **more))
        return made[-1]

    yield call
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def filling():
    starter = Starter()
    with openai.OpenAI(base_url=url(starter(ScriptedDenoiser("sum(items)"))), api_key="none", max_retries=0) as client:
        yield client
    starter.stop()


@pytest.fixture(scope="module")
def talking():
    starter = Starter()
    denoiser = chatty(ANSWER, tokens_per_step=3)
    with openai.OpenAI(base_url=url(starter(denoiser)), api_key="none", max_retries=0) as client:
        yield client
    starter.stop()


def metric(client, row):
    lines = client.get("/metrics").body.decode().splitlines()
    return next((int(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{row} ")), 0)


def answered(client, path, status):
    return metric(client, f'dg_lsp_requests_total{{path="{path}",status="{status}"}}')


def wait_until(happened):
    deadline = time.monotonic() + TIMEOUT
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_completion_with_a_suffix(filling):
    done = filling.completions.create(**GAP, max_tokens=32, temperature=0.2, top_p=0.9, user="me")
    [choice] = done.choices
    assert (choice.text, choice.finish_reason, choice.index) == ("sum(items)", "stop", 0)
    assert (done.object, done.model) == ("text_completion", "scripted")
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens
    assert done.usage.prompt_tokens_details.cached_tokens <= done.usage.prompt_tokens
    assert done.model_extra["timings"]["predicted_n"] == len("sum(items)") + 1
    assert abs(done.created - time.time()) < 3600


def test_a_streamed_completion(filling):
    with filling.completions.create(**GAP, stream=True, stream_options={"include_usage": True}) as stream:
        *pieces, last = stream
    assert "".join(one.choices[0].text for one in pieces) == "sum(items)"
    assert [one.choices[0].finish_reason for one in pieces] == [None, "stop"]
    assert (last.choices, last.usage.completion_tokens) == ([], len("sum(items)") + 1)


def test_drafts_by_an_extra_field(filling):
    with filling.completions.create(**GAP, stream=True, extra_body={"diffusing": True}) as stream:
        texts = [one.choices[0].text for one in stream]
    assert texts[-1] == "sum(items)"
    assert len(texts) > 2


def test_a_chat(talking):
    done = talking.chat.completions.create(**ASKED, max_completion_tokens=500)
    [choice] = done.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", ANSWER, "stop")
    assert not choice.message.tool_calls


def test_a_streamed_chat(talking):
    with talking.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True}) as stream:
        *pieces, last = stream
    assert "".join(one.choices[0].delta.content for one in pieces) == ANSWER
    assert len(pieces) > 10
    assert last.usage.completion_tokens == len(ANSWER.encode()) + 1


def test_its_own_helper_gathers_a_streamed_chat(talking):
    with talking.chat.completions.stream(**ASKED) as stream:
        stream.until_done()
        assert stream.get_final_completion().choices[0].message.content == ANSWER


def test_the_models(filling):
    [model] = filling.models.list().data
    assert (model.id, model.object, model.owned_by) == ("scripted", "model", "dg-lsp")


@pytest.mark.parametrize(("more", "field"), [({"n": 99}, "n"), ({"prompt": ["a", "b"]}, "prompt"), ({"n": "x"}, "n")])
def test_a_wrong_field_is_a_bad_request(filling, more, field):
    with pytest.raises(openai.BadRequestError, match=f"Field '{field}'") as caught:
        filling.completions.create(**{**GAP, **more})
    error = caught.value
    assert (error.status_code, error.param, error.code, error.type) == (400, field, "400", "invalid_request_error")


def test_what_there_is_not(filling):
    with pytest.raises(openai.NotFoundError, match="no such path"):
        filling.embeddings.create(model="m", input="x")


def test_the_key(start, opened):
    client = start(ScriptedDenoiser("x"), rules=Rules(api_key="sesame"))
    with pytest.raises(openai.AuthenticationError, match="asks for a key"):
        opened(client).models.list()
    assert opened(client).with_options(api_key="sesame").models.list().data[0].id == "scripted"


def test_what_a_model_cannot_do_is_not_asked_again(start, opened):
    client = start(ScriptedDenoiser("x"))
    with pytest.raises(openai.InternalServerError, match="follows no instructions") as caught:
        opened(client).chat.completions.create(**ASKED)
    assert caught.value.status_code == 501
    assert answered(client, "/v1/chat/completions", 501) == 1


def test_while_the_model_loads_it_comes_again_when_it_is_told_to(start, opened):
    may_open = threading.Event()

    def open_engine(settings):
        assert may_open.wait(TIMEOUT)
        denoiser = ScriptedDenoiser("x")
        return Engine(denoiser, denoiser.tokenizer, settings.fill)

    client = start(open_engine=open_engine, is_waited=False)
    with pytest.raises(openai.InternalServerError, match="Loading model"):
        opened(client, max_retries=0).completions.create(**GAP)
    with ThreadPoolExecutor() as pool:
        began = time.monotonic()
        reply = pool.submit(opened(client, max_retries=10).completions.create, **GAP)
        wait_until(lambda: answered(client, "/v1/completions", 503) == 2)
        may_open.set()
        assert reply.result(TIMEOUT).choices[0].text == "x"
        assert time.monotonic() - began >= 0.9  # Retry-After: 1


def test_a_request_whose_place_was_taken_is_not_asked_again(start, opened, gated):
    denoiser = gated("x")
    client = start(denoiser)
    ours = opened(client, max_retries=5)
    body = {"language": "python", "user": "u", "segments": {"prefix": "a", "suffix": "", "filepath": "a.py"}}
    with ThreadPoolExecutor() as pool:
        stale = pool.submit(ours.completions.create, model="m", prompt="", extra_body=body)
        assert denoiser.is_inside.wait(TIMEOUT)
        newer = {**body, "segments": {**body["segments"], "prefix": "ab"}}
        newest = pool.submit(client.post, "/v1/completions", newer)
        with pytest.raises(openai.APIStatusError, match="took its place") as caught:
            stale.result(TIMEOUT)
        denoiser.go_on.set()
        assert newest.result(TIMEOUT).status == 200
    assert caught.value.status_code == 499
    assert answered(client, "/v1/completions", 499) == 1


def test_an_error_in_the_middle_of_a_stream_is_raised(start, opened):
    denoiser = chatty("abcdef", tokens_per_step=1)
    predict = denoiser.predict

    def fail_later(*args):
        if denoiser.num_steps == 3:
            raise RuntimeError
        return predict(*args)

    denoiser.predict = fail_later
    with pytest.raises(openai.APIError, match="internal error: RuntimeError") as caught:
        list(opened(start(denoiser)).chat.completions.create(**ASKED, stream=True))
    assert caught.value.code == "500"


def test_closing_a_stream_stops_the_model(start, opened):
    client = start(denoiser := chatty(LONG, step_seconds=0.01, tokens_per_step=1))
    with opened(client).chat.completions.create(**ASKED, stream=True) as stream:
        next(stream)
    wait_until(lambda: metric(client, "dg_lsp_left_total") == 1)
    assert denoiser.num_steps < 1000


def test_its_timeout_stops_the_model(start, opened, gated):
    denoiser = gated(LONG)
    client = start(denoiser)
    with pytest.raises(openai.APITimeoutError):
        opened(client, timeout=2.0, max_retries=0).completions.create(**GAP)
    wait_until(lambda: metric(client, "dg_lsp_left_total") == 1)
    denoiser.go_on.set()


def test_cancelling_a_task_of_its_asynchronous_twin_stops_the_model(start, gated):
    denoiser = gated("x")
    client = start(denoiser)

    async def leave():
        async with openai.AsyncOpenAI(base_url=url(client), api_key="none") as ours:
            asking = asyncio.create_task(ours.completions.create(**GAP))
            await asyncio.to_thread(denoiser.is_inside.wait, TIMEOUT)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    asyncio.run(leave())
    wait_until(lambda: metric(client, "dg_lsp_left_total") == 1)
    denoiser.go_on.set()
