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
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx2

from dg_lsp.backends.remote.dialects import Dialect, RemoteAnswer, RemoteQuery, dialect_of, usage_of
from dg_lsp.errors import RemoteError, SettingsError
from dg_lsp.settings import RemoteSettings

HEARTBEAT = 0.02
"""Seconds after which a stream yields at the latest, and so can be cancelled."""
RETRY_SECONDS = 0.05
"""Pause before the only retry."""
PAUSE_SECONDS = 5.0
"""How long a server gets no requests after several failures in a row."""
CONNECT_SECONDS = 1.0
MIN_SECONDS = 0.1
"""With a shorter deadline, a missing answer is not a failure of the server."""
REJECTION_SECONDS = 0.5
REJECTION_BYTES = 1 << 16
"""Limits of what is read of the response to a rejected request."""
CLOSE_SECONDS = 2.0
SEVERAL_TEMPERATURE = 0.8
"""Of several answers: at 0 they would be equal."""
BYTES_PER_TOKEN, SPARE_BYTES, SPARE_TOKENS = 2048, 1 << 16, 64
"""Limits of a response. Events repeat names and ids around each token."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
EVENT_STREAM = "text/event-stream"
LANGUAGES = "dg-lsp-languages"
"""Header in which `dg-lsp serve` names the only languages of its model."""
_LANGUAGES = re.compile(r"[\w.+#-]{1,40}(?:,[\w.+#-]{1,40}){0,99}", re.ASCII)


MAX_FAILURES = 3
"""Failures in a row that open the circuit breaker."""
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
_REFUSALS = (429, 503)
_MAX_RETRY_AFTER = 60.0
_TOO_LONG = re.compile(rb"exceed_context|context_length|context (length|size|window)|too (long|large)", re.IGNORECASE)
"""How llama-server, vLLM, SGLang and OpenAI report a prompt that is longer than the context."""
_REJECTED = "rejects the request (status {status}); try another remote.api, remote.fim or remote.model"
_MESSAGES = {
    300: "redirects to another address (status {status}); set remote.url to that address",
    400: _REJECTED,
    401: "requires a key (status 401); put it into the environment variable of remote.key_source",
    403: "rejects the key (status 403); set another one",
    404: "has no {path} or no such model (status 404); check remote.url, remote.api and remote.model",
    405: "has no {path} (status 405); choose another remote.api",
    413: "has a shorter context than this prompt; lower remote.max_prompt_tokens",
    422: _REJECTED,
    429: "is busy (status 429)",
    501: "does not support this request with its model (status 501); choose another remote.api",
    503: "is not ready (status 503)",
}
_CERTIFICATES = {
    10: "has an expired certificate; it must be renewed on the server",
    62: "has the certificate of another host; set remote.url to the name in the certificate",
    64: "has the certificate of another host; set remote.url to the name in the certificate",
}
"""By OpenSSL's code of the verification error."""


class RemoteRequestError(RemoteError):
    """A request without an answer."""

    def __init__(
        self, message: str, *, is_transient: bool = False, retry_after: float = 0.0, is_refusal: bool = False
    ) -> None:
        """`retry_after` are the seconds that the server asks for; `is_refusal` where the server has too much work."""
        super().__init__(message)
        self.is_transient = is_transient
        self.retry_after = retry_after
        self.is_refusal = is_refusal

    @classmethod
    def at(cls, host: str, error: RemoteError) -> Self:
        """The error with the name of the server before its message."""
        return cls(f"{host} {error}", is_refusal=isinstance(error, RemoteRequestError) and error.is_refusal)


def status_error(status: int, headers: Mapping[str, str], path: str, body: bytes = b"") -> RemoteRequestError:
    """The error of an HTTP status other than 200; `body` only decides whether the prompt is too long."""
    if status == 400 and _TOO_LONG.search(body):
        status = 413
    redirection = _MESSAGES[300] if 300 <= status < 400 else "fails with status {status}"
    message = _MESSAGES.get(status, redirection).format(status=status, path=path)
    if status not in _TRANSIENT:
        return RemoteRequestError(message)
    retry_after = _retry_after(headers.get("retry-after", ""))
    return RemoteRequestError(message, is_transient=True, retry_after=retry_after, is_refusal=status in _REFUSALS)


def connection_error(error: Exception) -> RemoteRequestError:
    """The error of an exception that httpx raised; only its type enters the message."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            untrusted = "has a certificate that is not trusted; set remote.ca_file"
            return RemoteRequestError(_CERTIFICATES.get(cause.verify_code, untrusted))
        if isinstance(cause, ssl.SSLError):
            return RemoteRequestError("does not speak TLS on this port; set remote.url to http:// or another port")
        cause = cause.__cause__ or cause.__context__
    name = type(error).__name__
    if name == "ConnectTimeout":
        return RemoteRequestError(
            "does not accept connections in time; check its address and the network", is_transient=True
        )
    if name in ("ConnectError", "ProxyError"):
        return RemoteRequestError(
            "does not accept connections; start the server, or correct its address", is_transient=True
        )
    if name in ("InvalidURL", "UnsupportedProtocol"):
        return RemoteRequestError("is not an address; correct remote.url")
    return RemoteRequestError(
        f"broke the connection ({name}); try again, and read the log of the server", is_transient=True
    )


@dataclass(slots=True)
class CircuitBreaker:
    """Blocks requests for a pause after some failures in a row; the first request after the pause is the test."""

    pause: float  # seconds
    clock: Callable[[], float] = time.monotonic
    num_failures: int = 0
    blocked_until: float = 0.0
    reason: str = ""  # the last failure

    @property
    def seconds_left(self) -> float:
        """Of the pause; 0 where requests are allowed."""
        return max(0.0, self.blocked_until - self.clock())

    def record_success(self) -> None:
        """Closes the breaker."""
        self.num_failures = 0
        self.blocked_until = 0.0

    def record_failure(self, reason: str, retry_after: float = 0.0) -> None:
        """Blocks requests for `retry_after` seconds, after too many failures for the pause."""
        self.reason = reason
        self.num_failures += 1
        pause = self.pause if self.num_failures >= MAX_FAILURES else 0.0
        self.blocked_until = max(self.blocked_until, self.clock() + max(retry_after, pause))


def _retry_after(value: str) -> float:
    """The header `Retry-After`, seconds or a date, in seconds from now; 0 where it is neither."""
    if value.isascii() and value.isdigit():
        return min(float(value), _MAX_RETRY_AFTER)
    with suppress(ValueError, OverflowError):
        return min(max(0.0, parsedate_to_datetime(value).timestamp() - time.time()), _MAX_RETRY_AFTER)
    return 0.0


class AnswerBuilder:
    """Collects the pieces of all answers to one query, and publishes the answer so far."""

    def __init__(self, dialect: Dialect, num_answers: int, publish: Callable[[RemoteAnswer], None]) -> None:
        self._dialect = dialect
        self._num_answers = num_answers
        self._publish = publish
        self._texts: dict[int, list[str]] = {}
        self._finishes: dict[int, str] = {}
        self._model = ""
        self._usage: dict[str, Any] = {}

    def add(self, data: str) -> None:
        """Appends the pieces of one event or response, and publishes; raises `RemoteError` where it is invalid."""
        try:
            tree = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise RemoteError("sends a response that is not JSON") from error
        if isinstance(tree, dict) and "error" in tree:
            raise RemoteError("reports an error instead of an answer")
        try:
            pieces = list(self._dialect.pieces(tree))
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            problem = f"sends a response that does not fit {self._dialect.path}; choose another remote.api"
            raise RemoteError(problem) from error
        for piece in pieces:
            if piece.index < self._num_answers:
                self._texts.setdefault(piece.index, []).append(piece.text)
                self._finishes[piece.index] = piece.finish or self._finishes.get(piece.index, "")
        last = (tree or [{}])[-1] if isinstance(tree, list) else tree
        self._usage |= usage_of(last)
        if isinstance(model := last.get("model"), str):
            self._model = _printable(model)[:120]
        self.publish()

    @property
    def has_text(self) -> bool:
        """Whether any piece has come; a retry would return it again."""
        return bool(self._texts)

    @property
    def is_complete(self) -> bool:
        """Whether all answers have ended or have their maximal length."""
        return len(self._texts) == self._num_answers and all(self._finishes.values())

    def publish(self, *, is_over: bool = False) -> None:
        """Publishes the answer so far; `is_over` where no more pieces follow."""
        texts = tuple("".join(self._texts[index]) for index in sorted(self._texts))
        is_all = bool(texts) and (is_over or len(texts) == self._num_answers)
        is_finished = is_all and set(self._finishes.values()) == {"stop"}
        self._publish(RemoteAnswer(texts, is_finished, self._model, **self._usage))


class RemoteModel:
    """The model behind the server of the settings. One thread sends queries; any thread may close."""

    def __init__(self, settings: RemoteSettings, *, pause_seconds: float = PAUSE_SECONDS) -> None:
        """Sends nothing yet. Raises `SettingsError` without a safe address, or for an unreadable key or certificate."""
        if not settings.url:
            raise SettingsError("remote.url is empty; set it to the address of the server")
        address = urlsplit(settings.url)
        if address.scheme == "http" and address.hostname not in LOOPBACK and not settings.allow_http:
            problem = f"{address.netloc} would receive code and key without encryption"
            raise SettingsError(f"{problem}: use an https address, or set remote.allow_http = true")
        self._settings = settings
        self._key = _read_key(settings)
        self._client = _client(settings)
        self._dialect = dialect_of(settings.api, settings.fim)
        self._extra: dict[str, Any] = json.loads(settings.extra) if settings.extra else {}
        self._salt = secrets.token_bytes(16)
        self._host = urlsplit(settings.url).netloc
        self.name = f"{settings.model}@{self._host}" if settings.model else self._host
        """The model and the host, for people."""
        self.max_prompt_tokens = settings.max_prompt_tokens
        """About how many tokens of a file a query may contain."""
        self.follows_instructions = self._dialect.follows_instructions
        """Whether the server accepts rewrites by instruction, and chats."""
        self.continues_text = self._dialect.continues_text
        """Whether the server continues a text as it is."""
        self.languages: tuple[str, ...] = ()
        """LSP ids of the languages that the model knows, as far as the server has named them; empty: any language."""
        self._breaker = CircuitBreaker(pause_seconds)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dg-lsp-remote", daemon=True)
        self._thread.start()

    def learn_languages(self) -> None:
        """Requests the languages that the server's model of fills knows: any, if the server names none."""
        if self.follows_instructions:  # one of two models: the first answer names them
            return
        done = asyncio.run_coroutine_threadsafe(self._learn_languages(), self._loop)
        with suppress(httpx2.HTTPError, httpx2.InvalidURL, ssl.SSLError, OSError):  # the first query reports it
            done.result()

    def stream(self, query: RemoteQuery, deadline: float) -> Generator[RemoteAnswer, None, None]:
        """Yields the answer so far whenever it grows, and every `HEARTBEAT` seconds; closing the generator cancels.

        Ends with the answer, or at the deadline, in `time.monotonic` seconds.

        Raises:
            RemoteError: the server is unreachable, rejects the query, or sends an invalid response.
        """
        if time.monotonic() >= deadline:
            return
        if seconds := self._breaker.seconds_left:
            raise RemoteError(f"{self._host} {self._breaker.reason}; the next request is possible in {seconds:.0f} s")
        updates: queue.SimpleQueue[RemoteAnswer | None] = queue.SimpleQueue()
        builder = AnswerBuilder(self._dialect, query.num_answers, updates.put)
        job = asyncio.run_coroutine_threadsafe(self._run(query, deadline, builder), self._loop)
        job.add_done_callback(lambda _: updates.put(None))
        answer: RemoteAnswer | None = RemoteAnswer()
        try:
            while answer is not None:
                with suppress(queue.Empty):
                    answer = updates.get(timeout=HEARTBEAT)
                if answer is not None:
                    yield self._dialect.extract(answer, query)
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

    async def _learn_languages(self) -> None:
        request = self._client.stream("GET", self._url("/v1/models"), headers=self._authorization)
        async with asyncio.timeout(CONNECT_SECONDS), request as response:
            self._read_languages(response)

    def _read_languages(self, response: httpx2.Response) -> None:
        named = _LANGUAGES.fullmatch(response.headers.get(LANGUAGES, ""))
        self.languages = tuple(named[0].split(",")) if named else ()

    async def _run(self, query: RemoteQuery, deadline: float, builder: AnswerBuilder) -> None:
        """Sends a query and records the outcome in the circuit breaker."""
        seconds = deadline - time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                await self._send_with_retry(query, deadline, builder)
        except TimeoutError:  # the pieces so far are the answer
            if not builder.has_text and seconds >= MIN_SECONDS:
                self._breaker.record_failure("sends no answer within the deadline")
        except RemoteError as error:
            retry_after = error.retry_after if isinstance(error, RemoteRequestError) else 0.0
            self._breaker.record_failure(str(error), retry_after)
            raise RemoteRequestError.at(self._host, error) from None
        else:
            self._breaker.record_success()
        builder.publish(is_over=True)

    async def _send_with_retry(self, query: RemoteQuery, deadline: float, builder: AnswerBuilder) -> None:
        try:
            await self._send(query, deadline, builder)
        except RemoteRequestError as error:
            pause = max(error.retry_after, RETRY_SECONDS)
            if builder.has_text or not error.is_transient or time.monotonic() + pause >= deadline:
                raise
        else:
            return
        await asyncio.sleep(pause)
        await self._send(query, deadline, builder)

    async def _send(self, query: RemoteQuery, deadline: float, builder: AnswerBuilder) -> None:
        try:
            body, headers = self._body(query, deadline), self._headers(query)
            async with self._client.stream(
                "POST", self._url(self._dialect.path), content=body, headers=headers
            ) as response:
                if response.status_code != httpx2.codes.OK:
                    raise await self._rejection(response)
                self._read_languages(response)
                async with aclosing(self._events(response, query)) as events:
                    async for event in events:
                        builder.add(event)
                        if builder.is_complete:
                            return  # only counts may follow
            if not builder.has_text:
                raise RemoteRequestError("ends the response without an answer", is_transient=True)
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, ssl.SSLError, OSError) as error:
            raise connection_error(error) from error

    async def _rejection(self, response: httpx2.Response) -> RemoteRequestError:
        start = b""
        if response.status_code == httpx2.codes.BAD_REQUEST:
            with suppress(TimeoutError, RemoteError, httpx2.HTTPError):
                async with asyncio.timeout(REJECTION_SECONDS):
                    async for chunk in _checked_chunks(response.aiter_raw(), REJECTION_BYTES):
                        start += chunk
        return status_error(response.status_code, response.headers, self._dialect.path, start)

    async def _events(self, response: httpx2.Response, query: RemoteQuery) -> AsyncGenerator[str, None]:
        """The JSON texts of a stream of events, or the one of a whole response."""
        if response.headers.get("content-encoding", "identity") != "identity":
            raise RemoteError("compresses its response, which is not supported")
        kind = _printable(response.headers.get("content-type", "").partition(";")[0].strip().lower())
        max_bytes = SPARE_BYTES + BYTES_PER_TOKEN * (query.max_tokens + SPARE_TOKENS) * query.num_answers
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
                    if event.event == "error" or data.startswith('{"error"'):  # some servers do not escape its text
                        raise RemoteError("reports an error in the middle of its answer")
                    if data == "[DONE]":
                        return
                    if data:
                        yield data
        else:
            what = f"content of type {kind[:60]}" if kind else "content without a type"
            raise RemoteError(f"returns {what}; is remote.url the address of an API?")

    def _url(self, path: str) -> str:
        base = self._settings.url.rstrip("/")
        return base.removesuffix("/v1") + path if path.startswith("/v1/") else base + path

    def _headers(self, query: RemoteQuery) -> dict[str, str]:
        # lets a load balancer send all requests of a document to one server, without naming the document
        session = hashlib.blake2b(query.session.encode("utf-8", "replace"), digest_size=8, key=self._salt).hexdigest()
        headers = {
            "Content-Type": "application/json",
            "Accept": f"{EVENT_STREAM}, application/json",
            "Accept-Encoding": "identity",
            "X-Session-Id": session,
            **({"Dg-Lsp-Trigger": "invoked"} if query.is_invoked else {}),
        }
        return {**headers, **self._authorization}

    @property
    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    def _body(self, query: RemoteQuery, deadline: float) -> bytes:
        temperature = 0.0 if query.num_answers == 1 else SEVERAL_TEMPERATURE
        tree = self._dialect.body(query, temperature, 1e3 * (deadline - time.monotonic()))
        if self._settings.model:
            tree["model"] = self._settings.model
        # JSON escapes a lone surrogate, which UTF-8 cannot encode
        return json.dumps({**tree, **self._extra}, separators=(",", ":")).encode()


async def _checked_chunks(chunks: AsyncIterator[bytes], max_bytes: int) -> AsyncGenerator[bytes, None]:
    """The chunks of a response that is valid UTF-8 and not too long."""
    decoder, num_bytes = codecs.getincrementaldecoder("utf-8")(), 0
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


def _printable(text: str) -> str:
    """Without control characters, which a terminal would interpret."""
    return "".join(char for char in text if char.isprintable())


def _read_key(settings: RemoteSettings) -> str:
    """The key in the environment variable, or in the system's keyring if the settings name that."""
    key = os.environ.get(settings.key_source, "").strip()
    if settings.key_source == "keyring":
        try:
            import keyring
        except ImportError as error:
            message = "remote.key_source = keyring needs the package keyring: install it, or name a variable"
            raise SettingsError(message) from error
        try:
            key = (keyring.get_password("dg-lsp", urlsplit(settings.url).hostname or "") or "").strip()
        except keyring.errors.KeyringError as error:
            raise SettingsError(f"the keyring cannot be read ({type(error).__name__}): unlock it") from error
    if not (key.isascii() and key.isprintable()):
        raise SettingsError("the key of the remote server contains invalid characters; set it again")
    return key


def _client(settings: RemoteSettings) -> httpx2.AsyncClient:
    """Raises `SettingsError` for certificates or proxies that cannot be used."""
    try:
        certificates = str(Path(settings.ca_file).expanduser()) if settings.ca_file else ""
        return httpx2.AsyncClient(
            verify=ssl.create_default_context(cafile=certificates) if certificates else True,
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),  # the deadline limits everything else
            limits=httpx2.Limits(),  # none: a load test opens as many connections as it names
            follow_redirects=False,
            trust_env=urlsplit(settings.url).hostname not in LOOPBACK,  # proxies
        )
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"remote.ca_file {settings.ca_file} contains no readable certificates") from error
    except (ImportError, ValueError, httpx2.InvalidURL) as error:
        raise SettingsError(
            f"the proxy in the environment cannot be used ({type(error).__name__}); correct or unset it"
        ) from error
