"""A model behind a server. An asyncio loop in a thread of its own does the HTTP, so a caller can cancel at any time.

Exceptions of httpx become `RemoteError` here. No error contains the prompt, the key or anything that the server sent,
because that may contain the user's code. Messages follow the name of the server: "HOST is busy (status 429)".
"""

import asyncio
import codecs
import hashlib
import json
import os
import queue
import re
import secrets
import ssl
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import aclosing, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx2

from dg_lsp.backends.remote import dialects
from dg_lsp.backends.remote.dialects import DIALECTS, Dialect, RemoteAnswer, RemoteQuery
from dg_lsp.errors import RemoteError, SettingsError, escaped
from dg_lsp.settings import RemoteSettings
from dg_lsp.system import LOOPBACK, expanded

HEARTBEAT = 0.02
"""Seconds after which a stream yields at the latest, and so can be cancelled."""
MAX_RETRY_AFTER = 60.0
PAUSE_SECONDS = 5.0
"""How long a server gets no requests after several failures in a row."""
MAX_FAILURES = 3
"""Failures in a row that open the circuit breaker."""
CONNECT_SECONDS = 1.0
MIN_SECONDS = 0.1
"""With a shorter deadline, a missing answer is not a failure of the server."""
REJECTION_SECONDS = 0.5
REJECTION_BYTES = 1 << 16
"""Limits of what is read of the response to a rejected request."""
CLOSE_SECONDS = 2.0
SEVERAL_TEMPERATURE = 0.8
"""Of several answers: at 0 they would be equal."""
BYTES_PER_TOKEN = 2048
"""Limit of a response: events repeat names and ids around each token."""
SPARE_BYTES = 1 << 18
EVENT_STREAM = "text/event-stream"
_LANGUAGES = re.compile(r"[\w.+#-]{1,40}(?:,[\w.+#-]{1,40}){0,99}", re.ASCII)
_TOO_LONG = re.compile(r"exceed_context|context_length|context (length|size|window)|too (long|large)", re.IGNORECASE)
"""How llama-server, vLLM, SGLang and OpenAI report a prompt that is longer than the context."""
_KEY = "requires a key, or rejects this one (status {status}); set the environment variable of remote.key_source"
_REJECTED = "rejects the request (status {status}); try another remote.api, remote.fim or remote.model"
_MESSAGES = {
    3: "redirects to another address (status {status}); set remote.url to that address",
    4: _REJECTED,
    401: _KEY,
    403: _KEY,
    404: "has no {path} or no such model (status 404); check remote.url, remote.api and remote.model",
    413: "has a shorter context than this prompt; lower remote.max_prompt_tokens",
    429: "is busy (status 429)",
    501: _REJECTED,
    503: "is not ready (status 503)",
}
"""By status, or by its hundreds."""


def connection_error(error: Exception) -> RemoteError:
    """The error of an exception that httpx raised. Its text does not enter the message, only OpenSSL's reason does."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        reason = cause.verify_message.rstrip(".")
        return RemoteError(f"has a certificate that is not valid ({reason}); set remote.ca_file or remote.url")
    if cause is not None:
        return RemoteError("does not speak TLS on this port; set remote.url to http:// or another port")
    if isinstance(error, httpx2.InvalidURL):
        return RemoteError("is not an address; correct remote.url")
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError):
        return RemoteError("does not accept connections; start the server, or correct its address")
    return RemoteError(f"broke the connection ({type(error).__name__}); try again, and read the log of the server")


def _reported_error(status: Any, text: str, path: str) -> RemoteError:
    """The error that a server reports. Its text only decides whether the prompt is too long."""
    if _TOO_LONG.search(text):
        status = 413
    if not isinstance(status, int):
        return RemoteError("reports an error instead of an answer")
    message = _MESSAGES.get(status) or _MESSAGES.get(status // 100, "fails with status {status}")
    return RemoteError(message.format(status=status, path=path))


class AnswerBuilder:
    """Collects the pieces of all answers to one query, and publishes the answer so far."""

    def __init__(self, dialect: Dialect, num_answers: int, publish: Callable[[RemoteAnswer], None]) -> None:
        self._dialect = dialect
        self._num_answers = num_answers
        self._publish = publish
        self._texts: dict[int, str] = {}
        self._finishes: dict[int, str] = {}
        self._model = ""
        self._usage: dict[str, int] = {}

    def add(self, data: str) -> None:
        """Appends the pieces of one event or response, and publishes; raises `RemoteError` where it is invalid."""
        try:
            tree = json.loads(data)
        except (ValueError, RecursionError) as error:
            if data.startswith('{"error"'):  # some servers do not escape its text
                raise _reported_error(None, data, self._dialect.path) from error
            raise RemoteError("sends a response that is not JSON") from error
        if isinstance(tree, dict) and "error" in tree:
            report = tree["error"]  # in a stream of status 200 vLLM and SGLang send the status as its code
            code = report.get("code") if isinstance(report, dict) else None
            raise _reported_error(code, data, self._dialect.path)
        try:
            pieces = list(self._dialect.pieces(tree))
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            problem = f"sends a response that does not fit {self._dialect.path}; choose another remote.api"
            raise RemoteError(problem) from error
        for piece in pieces:
            if piece.index < self._num_answers:
                self._texts[piece.index] = self._texts.get(piece.index, "") + piece.text
                self._finishes[piece.index] = piece.finish or self._finishes.get(piece.index, "")
        last = (tree or [{}])[-1] if isinstance(tree, list) else tree
        self._usage |= dialects.usage_of(last)
        if isinstance(model := last.get("model"), str):
            self._model = escaped(model)[:120]
        self.publish()

    @property
    def has_text(self) -> bool:
        """Whether any piece has come."""
        return bool(self._texts)

    @property
    def is_complete(self) -> bool:
        """Whether all answers have ended or have their maximal length."""
        return len(self._texts) == self._num_answers and all(self._finishes.values())

    def publish(self, *, is_over: bool = False) -> None:
        """Publishes the answer so far; `is_over` where no more pieces follow."""
        texts = tuple(self._texts[index] for index in sorted(self._texts))
        is_all = bool(texts) and (is_over or len(texts) == self._num_answers)
        is_finished = is_all and set(self._finishes.values()) == {"stop"}
        self._publish(RemoteAnswer(texts, is_finished, self._model, **self._usage))


class RemoteModel:
    """The model behind the server of the settings. One thread sends queries; any thread may close."""

    def __init__(self, settings: RemoteSettings) -> None:
        """Sends nothing yet. Raises `SettingsError` without a safe address, or for an unreadable key or certificate."""
        if not settings.url:
            raise SettingsError("remote.url is empty; set it to the address of the server")
        address = urlsplit(settings.url)
        if address.scheme == "http" and address.hostname not in LOOPBACK and not settings.allow_http:
            problem = f"{address.netloc} would receive code and key without encryption"
            raise SettingsError(f"{problem}: use an https address, or set remote.allow_http = true")
        self._settings = settings
        key = os.environ.get(settings.key_source, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise SettingsError("the key of the remote server contains invalid characters; set it again")
        self._authorization = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = _client(settings)
        self.dialect = DIALECTS[settings.api]
        self._extra: dict[str, Any] = json.loads(settings.extra) if settings.extra else {}
        self._salt = secrets.token_bytes(16)
        self._host = address.netloc
        self.name = f"{settings.model}@{self._host}" if settings.model else self._host
        """The model and the host, for people."""
        self.max_prompt_tokens = settings.max_prompt_tokens
        """About how many tokens of a file a query may contain."""
        self.languages: tuple[str, ...] = ()
        """LSP ids of the languages that the model knows, as far as the server has named them; empty: any language."""
        self._num_failures = 0  # in a row
        self._last_failure = ""
        self._blocked_until = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dg-lsp-remote", daemon=True)
        self._thread.start()

    def learn_languages(self) -> None:
        """Requests the languages that the server's model of fills knows: any, if the server names none."""

        async def request() -> None:
            stream = self._client.stream("GET", self._url("/v1/models"), headers=self._authorization)
            async with asyncio.timeout(CONNECT_SECONDS), stream as response:
                self._read_languages(response)

        if self.dialect.follows_instructions:  # one of two models: the first answer names them
            return
        with suppress(httpx2.HTTPError, httpx2.InvalidURL, OSError):  # the first query reports it
            asyncio.run_coroutine_threadsafe(request(), self._loop).result()

    def stream(self, query: RemoteQuery, deadline: float) -> Generator[RemoteAnswer, None, None]:
        """Yields the answer so far whenever it grows, and every `HEARTBEAT` seconds; closing the generator cancels.

        Ends with the answer, or at the deadline, in `time.monotonic` seconds.

        Raises RemoteError: the server is unreachable, rejects the query, or sends an invalid response.
        """
        if time.monotonic() >= deadline:
            return
        if (seconds := self._blocked_until - time.monotonic()) > 0:  # the first request after the pause is the test
            raise RemoteError(f"{self._host} {self._last_failure}; the next request is possible in {seconds:.0f} s")
        updates: queue.SimpleQueue[RemoteAnswer | None] = queue.SimpleQueue()
        builder = AnswerBuilder(self.dialect, query.num_answers, updates.put)
        job = asyncio.run_coroutine_threadsafe(self._run(query, deadline, builder), self._loop)
        job.add_done_callback(lambda _: updates.put(None))
        answer: RemoteAnswer | None = RemoteAnswer()
        try:
            while answer is not None:
                with suppress(queue.Empty):
                    answer = updates.get(timeout=HEARTBEAT)
                if answer is not None:
                    yield self.dialect.extract(answer, query)
            if not job.cancelled():
                job.result()
        finally:
            job.cancel()

    def close(self) -> None:
        """Closes all connections. Idempotent."""
        if not self._thread.is_alive():
            return
        closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        with suppress(TimeoutError):
            closing.result(CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    async def _close(self) -> None:
        queries = asyncio.all_tasks() - {asyncio.current_task()}
        for query in queries:
            query.cancel()
        await asyncio.gather(*queries, return_exceptions=True)
        await self._client.aclose()
        await self._loop.shutdown_asyncgens()

    def _read_languages(self, response: httpx2.Response) -> None:
        named = _LANGUAGES.fullmatch(response.headers.get(dialects.LANGUAGES_HEADER, ""))
        self.languages = tuple(named[0].split(",")) if named else ()

    async def _run(self, query: RemoteQuery, deadline: float, builder: AnswerBuilder) -> None:
        """Sends a query; after several failures in a row, further ones wait for a pause."""
        seconds = deadline - time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                await self._send(query, deadline, builder)
        except TimeoutError:  # the pieces so far are the answer
            if not builder.has_text and seconds >= MIN_SECONDS:
                self._record_failure("sends no answer within the deadline")
        except RemoteError as error:
            self._record_failure(str(error))
            raise RemoteError(f"{self._host} {error}") from None
        else:
            self._num_failures = 0
            self._blocked_until = 0.0
        builder.publish(is_over=True)

    def _record_failure(self, problem: str) -> None:
        self._last_failure = problem
        self._num_failures += 1
        if self._num_failures >= MAX_FAILURES:
            self._block(PAUSE_SECONDS)

    def _block(self, seconds: float) -> None:
        self._blocked_until = max(self._blocked_until, time.monotonic() + seconds)

    async def _send(self, query: RemoteQuery, deadline: float, builder: AnswerBuilder) -> None:
        try:
            url = self._url(self.dialect.path)
            body = self._body(query, deadline)
            headers = self._headers(query)
            async with self._client.stream("POST", url, content=body, headers=headers) as response:
                if response.status_code != httpx2.codes.OK:
                    raise await self._rejected(response)
                self._read_languages(response)
                async with aclosing(self._events(response, query)) as events:
                    async for event in events:
                        builder.add(event)
                        if builder.is_complete:
                            await _exhaust(events)  # only counts may follow
                            return
            if not builder.has_text:
                raise RemoteError("ends the response without an answer")
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError) as error:
            raise connection_error(error) from error

    async def _rejected(self, response: httpx2.Response) -> RemoteError:
        """The error of a status other than 200. The body only decides whether the prompt is too long."""
        status = response.status_code
        start = b""
        if status == httpx2.codes.BAD_REQUEST:
            with suppress(TimeoutError, RemoteError, httpx2.HTTPError):
                async with asyncio.timeout(REJECTION_SECONDS):
                    async for chunk in _checked_chunks(response.aiter_raw(), REJECTION_BYTES):
                        start += chunk
        seconds = response.headers.get("retry-after", "")
        if seconds.isascii() and seconds.isdigit():
            self._block(min(float(seconds), MAX_RETRY_AFTER))
        return _reported_error(status, start.decode(errors="replace"), self.dialect.path)

    async def _events(self, response: httpx2.Response, query: RemoteQuery) -> AsyncGenerator[str, None]:
        """The JSON texts of a stream of events, or the one of a whole response."""
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        max_bytes = SPARE_BYTES + BYTES_PER_TOKEN * query.max_tokens * query.num_answers
        chunks = _checked_chunks(response.aiter_raw(), max_bytes)
        if kind == "application/json":
            yield b"".join([chunk async for chunk in chunks]).decode()
        elif kind == EVENT_STREAM:
            checked = httpx2.Response(
                200, headers={"Content-Type": EVENT_STREAM}, content=chunks, request=response.request
            )
            async with aclosing(aiter(httpx2.EventSource(checked, max_event_size=None))) as events:
                async for event in events:
                    data = event.data.strip()
                    if data == "[DONE]":
                        await _exhaust(events)
                        return
                    if data:
                        yield data
        else:
            what = f"content of type {kind[:60]}" if kind else "content without a type"
            raise RemoteError(f"returns {what}; is remote.url the address of an API?")

    def _url(self, path: str) -> str:
        return self._settings.url.rstrip("/").removesuffix("/v1") + path

    def _headers(self, query: RemoteQuery) -> dict[str, str]:
        # lets a load balancer send all requests of a document to one server, without naming the document
        session = hashlib.blake2b(query.session.encode("utf-8", "replace"), digest_size=8, key=self._salt).hexdigest()
        return {
            "Content-Type": "application/json",
            "Accept": f"{EVENT_STREAM}, application/json",
            "Accept-Encoding": "identity",
            "X-Session-Id": session,
            **({dialects.TRIGGER_HEADER: "invoked"} if query.is_invoked else {}),
            **self._authorization,
        }

    def _body(self, query: RemoteQuery, deadline: float) -> bytes:
        temperature = 0.0 if query.num_answers == 1 else SEVERAL_TEMPERATURE
        tree = self.dialect.body(query, self._settings.fim, temperature, 1e3 * (deadline - time.monotonic()))
        if self._settings.model:
            tree["model"] = self._settings.model
        # JSON escapes a lone surrogate, which UTF-8 cannot encode
        return json.dumps({**tree, **self._extra}, separators=(",", ":")).encode()


async def _exhaust(events: AsyncIterator[str]) -> None:
    """Reads the end of a response, so that its connection stays open for the next query; one that goes on is closed."""
    with suppress(TimeoutError, RemoteError, httpx2.HTTPError):
        async with asyncio.timeout(HEARTBEAT):
            async for _ in events:
                pass


async def _checked_chunks(chunks: AsyncIterator[bytes], max_bytes: int) -> AsyncGenerator[bytes, None]:
    """The chunks of a response that is valid UTF-8 and not too long."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    num_bytes = 0
    try:
        async for chunk in chunks:
            num_bytes += len(chunk)
            if num_bytes > max_bytes:
                raise RemoteError("does not end its response")
            decoder.decode(chunk)
            yield chunk
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise RemoteError("sends a response that is not UTF-8") from error


def _client(settings: RemoteSettings) -> httpx2.AsyncClient:
    """Raises `SettingsError` for certificates or proxies that cannot be used."""
    try:
        certificates = str(expanded(settings.ca_file)) if settings.ca_file else ""
        return httpx2.AsyncClient(
            verify=ssl.create_default_context(cafile=certificates) if certificates else True,
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),  # the deadline limits everything else
            limits=httpx2.Limits(),  # none: a load test opens as many connections as it names
            follow_redirects=False,
            trust_env=urlsplit(settings.url).hostname not in LOOPBACK,  # proxies
        )
    except OSError as error:
        raise SettingsError(f"remote.ca_file {settings.ca_file} contains no readable certificates") from error
    except (ImportError, ValueError, httpx2.InvalidURL) as error:
        problem = f"the proxy in the environment cannot be used ({type(error).__name__})"
        raise SettingsError(f"{problem}; correct or unset it") from error
