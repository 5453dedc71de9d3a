"""A model behind a server: one loop in a thread of its own speaks HTTP, so that whoever waits can leave at any time.

Foreign exceptions end here. No text, no key and nothing that a server says reaches an error.
"""

import asyncio
import hashlib
import json
import secrets
import ssl
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dg_lsp.backends.remote.call import Call
from dg_lsp.backends.remote.dialects import SPREAD, dialect_of
from dg_lsp.backends.remote.key import Key, key_of
from dg_lsp.backends.remote.reading import beginning, most_bytes, printable, read
from dg_lsp.backends.remote.refusal import Refused, of_connection, of_status
from dg_lsp.backends.remote.trouble import Breaker, RetryBudget
from dg_lsp.context.asking import Answers, Asking
from dg_lsp.errors import RemoteError, SettingsError
from dg_lsp.settings import RemoteSettings

if TYPE_CHECKING:
    import httpx2

HEARTBEAT = 0.02
"""Seconds after which whoever waits may look around."""
BACKOFF = 0.05
"""Seconds before the first repeat; twice as long before each further one."""
FAIR_SECONDS = 0.1
"""Who has less time than that to say something is not to blame for saying nothing."""
REFUSAL_SECONDS = 0.5
"""For what a server says beside its refusal."""
LEAVING_SECONDS = 2.0
SESSION = "X-Session-Id"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def open_remote(settings: RemoteSettings) -> "RemoteModel":
    """The model behind the settings' server, which is not asked yet: it may come later.

    Raises:
        SettingsError: there is no address, or the key or the certificates cannot be had.
    """
    if not settings.url:
        raise SettingsError('backend is "remote" and remote.url is empty: say where the server is')
    return RemoteModel(settings, key_of(settings), _trust(settings))


class RemoteModel:
    """See `context.asking.TextModel`. One thread asks, any thread may close."""

    def __init__(self, settings: RemoteSettings, key: Key, trust: ssl.SSLContext | bool) -> None:
        self._settings = settings
        self._key = key
        self._trust = trust
        self._dialect = dialect_of(settings.api, settings.fim)
        self._extra: dict[str, Any] = json.loads(settings.extra) if settings.extra else {}
        self._salt = secrets.token_bytes(16)
        self._where = urlsplit(settings.url).netloc
        self._budget = RetryBudget()
        self._breaker = Breaker(settings.pause_ms / 1e3)
        self._client: httpx2.AsyncClient | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dg-lsp-remote", daemon=True)
        self._thread.start()
        self._loop.call_soon_threadsafe(self._prepare)

    @property
    def name(self) -> str:
        """See `TextModel.name`."""
        return f"{self._settings.model}@{self._where}" if self._settings.model else self._where

    @property
    def max_prompt_tokens(self) -> int:
        """See `TextModel.max_prompt_tokens`."""
        return self._settings.max_prompt_tokens

    @property
    def follows_instructions(self) -> bool:
        """See `TextModel.follows_instructions`."""
        return self._dialect.follows_instructions

    def ask(self, asking: Asking, deadline: float) -> Answers:
        """See `TextModel.ask`."""
        if time.monotonic() >= deadline:  # a prompt that is only to be decoded, which cannot be asked for
            return
        if left := self._breaker.seconds_left():
            raise RemoteError(f"{self._where}: {self._breaker.why}; it is asked again in {left:.0f} s")
        call = Call(asking.num_answers)
        job = asyncio.run_coroutine_threadsafe(self._answer(asking, call, deadline), self._loop)
        job.add_done_callback(lambda done: _end(call, done))
        is_over = False
        try:
            while not is_over:
                said, is_over = call.wait(HEARTBEAT)
                yield self._dialect.shown(said, asking)
        finally:
            job.cancel()

    def close(self) -> None:
        """See `TextModel.close`."""
        if not self._thread.is_alive():
            return
        leaving = asyncio.run_coroutine_threadsafe(self._leave(), self._loop)
        with suppress(TimeoutError):
            leaving.result(LEAVING_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LEAVING_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    async def _leave(self) -> None:
        # ours alone: what these have begun ends with them, and a part of it that had not begun would be told of
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    async def _answer(self, asking: Asking, call: Call, deadline: float) -> None:
        """Fills the call in; keeps account of what the server is worth."""
        task = asyncio.current_task()
        assert task is not None  # as for every coroutine that runs
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        seconds = deadline - time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                await self._persist(asking, call, deadline)
        except TimeoutError:
            # what has come by then is an answer; a server that says nothing in time is none
            if not call.has_begun and seconds >= FAIR_SECONDS:
                self._breaker.fail("it says nothing within the deadline")
            return
        except RemoteError as error:
            self._breaker.fail(str(error), error.retry_after if isinstance(error, Refused) else 0.0)
            raise RemoteError(f"{self._where}: {error}") from None
        self._breaker.succeed()

    async def _persist(self, asking: Asking, call: Call, deadline: float) -> None:
        """Repeats what a hiccup spoiled."""
        self._budget.earn()
        for number in range(self._settings.retries + 1):
            try:
                await self._once(asking, call, deadline)
            except Refused as refused:
                pause = max(refused.retry_after, BACKOFF * 2**number)
                is_late = time.monotonic() + pause >= deadline
                is_last = number == self._settings.retries
                if is_last or is_late or call.has_begun or not refused.is_passing or not self._budget.take():
                    raise
                await asyncio.sleep(pause)
            else:
                return

    async def _once(self, asking: Asking, call: Call, deadline: float) -> None:
        import httpx2

        try:
            client = self._connected()
            body = self._body(asking, deadline)
            async with client.stream("POST", self._url(), content=body, headers=self._headers(asking)) as response:
                if response.status_code != 200:
                    raise await self._refused(response)
                if response.headers.get("content-encoding", "identity") != "identity":
                    raise RemoteError("it compresses an answer that must not be compressed")
                kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
                limit = most_bytes((asking.max_tokens + 64) * asking.num_answers)
                await read(response.aiter_raw(), printable(kind)[:60], self._dialect, call, limit)
            if not call.has_begun:
                raise Refused("it ends without an answer", is_passing=True)
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, ssl.SSLError, OSError) as error:
            raise of_connection(error) from error

    async def _refused(self, response: "httpx2.Response") -> Refused:
        import httpx2

        said = b""
        if response.status_code == httpx2.codes.BAD_REQUEST:
            with suppress(TimeoutError, httpx2.HTTPError):
                async with asyncio.timeout(REFUSAL_SECONDS):
                    said = await beginning(response.aiter_raw())
        return of_status(response.status_code, response.headers, self._dialect.path, said)

    def _prepare(self) -> None:
        """The imports, which take a busy machine longer than a completion may; what is wrong is told to who asks."""
        with suppress(ImportError, OSError, ValueError):
            self._connected()

    def _connected(self) -> "httpx2.AsyncClient":
        if self._client is None:
            import httpx2

            seconds = self._settings.connect_ms / 1e3
            host = urlsplit(self._settings.url).hostname
            self._client = httpx2.AsyncClient(
                verify=self._trust,
                timeout=httpx2.Timeout(None, connect=seconds),  # the deadline is over everything else
                follow_redirects=False,
                trust_env=host not in LOOPBACK,  # proxies
            )
        return self._client

    def _url(self) -> str:
        base = self._settings.url.rstrip("/")
        path = self._dialect.path
        return base.removesuffix("/v1") + path if path.startswith("/v1/") else base + path

    def _headers(self, asking: Asking) -> dict[str, str]:
        # a load balancer keeps a document with one server by it; of the document it says nothing
        session = hashlib.blake2b(asking.session.encode("utf-8", "replace"), digest_size=8, key=self._salt).hexdigest()
        kinds = {"Accept": "text/event-stream, application/json", "Accept-Encoding": "identity"}
        return {"Content-Type": "application/json", SESSION: session, **kinds, **self._key.headers()}

    def _body(self, asking: Asking, deadline: float) -> bytes:
        settings = self._settings
        temperature = settings.temperature if asking.num_answers == 1 else max(settings.temperature, SPREAD)
        tree = self._dialect.body(asking, temperature, 1e3 * (deadline - time.monotonic()))
        if settings.model:
            tree["model"] = settings.model
        # a lone surrogate, which an editor may hold, is no UTF-8: JSON escapes it
        return json.dumps({**tree, **self._extra}, separators=(",", ":")).encode()


def _end(call: Call, done: "Future[None]") -> None:
    if done.cancelled():
        call.end()
        return
    error = done.exception()
    call.end(error if isinstance(error, Exception) else None)


def _trust(settings: RemoteSettings) -> ssl.SSLContext | bool:
    if not settings.verify_tls:
        return False
    if not settings.ca_file:
        return True
    try:
        return ssl.create_default_context(cafile=str(Path(settings.ca_file).expanduser()))
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"remote.ca_file {settings.ca_file} holds no certificates that can be read") from error
