"""A running HTTP server, from its address to its end. Logs where it listens and no content."""

import asyncio
import logging
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from types import FrameType

import uvicorn

from dg_lsp.engine.engine import Engine
from dg_lsp.errors import DgLspError, UsageError
from dg_lsp.http.app import create_app
from dg_lsp.http.auth import LOOPBACK, AccessRules
from dg_lsp.http.service import OpenWorker, Service
from dg_lsp.settings import Settings

BACKLOG = 128
KEEP_ALIVE_SECONDS = 75
MAX_CONNECTIONS = 512
"""Idle ones included; more could use up the files of the process."""
MAX_HEAD_BYTES = 65_536
REOPEN_SECONDS = 30.0
"""Between two attempts to open the model."""
STOP_SECONDS = 5
"""For responses that are being sent."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 8012


class HttpServer:
    """Binds its address at once and has a model as soon as one is loaded."""

    def __init__(
        self,
        address: Address,
        open_worker: OpenWorker,
        settings: Settings,
        rules: AccessRules,
        *,
        is_persistent: bool = False,
    ) -> None:
        """A persistent server stays when the model cannot be opened, and opens it again later.

        Raises:
            UsageError: the address cannot be bound, or is open to other machines without a key.
        """
        if address.host not in LOOPBACK and not rules.api_key:
            raise UsageError(
                f"{address.host} is open to other machines: set DG_LSP_API_KEY, give --api-key-file, or use 127.0.0.1"
            )
        self._socket = _bind(address)
        self._open_worker = open_worker
        self._settings = settings
        self._rules = rules
        self._is_persistent = is_persistent
        self._service: Service | None = None
        self._uvicorn: _UvicornServer | None = None
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self.port: int = self._socket.getsockname()[1]

    @property
    def url(self) -> str:
        """Base URL for clients."""
        host = self._socket.getsockname()[0]
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def run(self) -> None:
        """Serves until a signal or `stop`.

        Raises:
            ModelError, BackendError: the model cannot be opened.
            KeyboardInterrupt: Ctrl-C.
        """
        _silence_logging()
        with self._socket:
            asyncio.run(self._serve())
        if self._uvicorn is not None and self._uvicorn.is_interrupted:
            raise KeyboardInterrupt

    def start(self) -> None:
        """Serves in a thread of its own."""
        self._thread = threading.Thread(target=self.run, name="dg-lsp-http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends serving and releases the address; waits for the thread of `start`. Callable from any thread."""
        self._is_stopped = True
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True
        if self._thread is not None:
            self._thread.join(2 * STOP_SECONDS)
        elif self._uvicorn is None:
            self._socket.close()

    def idle_seconds(self) -> float:
        """Seconds since the last request; 0 during one. Callable from any thread."""
        if self._service is None or self._service.metrics.num_open_requests:
            return 0.0
        return time.monotonic() - self._service.metrics.last_request

    async def _serve(self) -> None:
        start = time.monotonic()
        service = self._service = Service(self._open_worker, self._settings, _log)
        server = self._uvicorn = _UvicornServer(_uvicorn_config(service, self._rules), service)
        server.should_exit = self._is_stopped
        serving = asyncio.create_task(server.serve([self._socket]))
        _log(f"listening on {self.url}")
        opening = asyncio.create_task(self._open(service))
        await asyncio.wait({serving, opening}, return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            if error := opening.exception():
                server.should_exit = True
                await serving
                raise error
            _log(f"{opening.result().spec.name} ready after {time.monotonic() - start:.2f} s")
        await serving
        opening.cancel()

    async def _open(self, service: Service) -> Engine:
        """Waits for the engine; a persistent server opens it again until it succeeds.

        Raises:
            ModelError, BackendError: it cannot be opened.
        """
        logged = ""
        while True:
            try:
                return await service.wait_until_open()
            except DgLspError as error:
                if not self._is_persistent:
                    raise
                if str(error) != logged:
                    logged = str(error)
                    _log(logged)
            await asyncio.sleep(REOPEN_SECONDS)
            service.reopen()


class _UvicornServer(uvicorn.Server):
    """Stops the model before it waits for responses, which wait for the model."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self.is_interrupted = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Notes Ctrl-C."""
        self.is_interrupted = self.is_interrupted or sig == signal.SIGINT
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops the model within one step, then the server."""
        await asyncio.to_thread(self._service.close)
        await super().shutdown(sockets)


def _uvicorn_config(service: Service, rules: AccessRules) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(service, rules),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )


def _bind(address: Address) -> socket.socket:
    try:
        family, kind, protocol, _, name = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # with its protocol, or asyncio does not set TCP_NODELAY and responses take 40 ms longer
        listener = socket.socket(family, kind, protocol)
        try:
            if sys.platform != "win32":  # Windows would let two servers share the port
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(name)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"cannot listen on {address.host}:{address.port} ({reason}); choose another --host or --port"
        ) from error
    return listener


def _silence_logging() -> None:
    """Tracebacks may quote a buffer; none may reach standard error."""
    for name in ("uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.addHandler(logging.NullHandler())
        logger.propagate = False


def _log(message: str) -> None:
    sys.stderr.write(f"dg-lsp: {message}\n")
    sys.stderr.flush()
