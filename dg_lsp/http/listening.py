"""From an address to a running server, and its end. Says where it listens; says nothing of what is asked."""

import asyncio
import logging
import signal
import socket
import sys
import time
from dataclasses import dataclass
from types import FrameType

import uvicorn

from dg_lsp.engine.engine import Engine
from dg_lsp.errors import DgLspError, UsageError
from dg_lsp.http.app import create_app
from dg_lsp.http.connection import MAX_HEAD_BYTES, Connection
from dg_lsp.http.gate import LOOPBACK, Rules
from dg_lsp.http.service import OpenWorker, Service
from dg_lsp.settings import Settings

BACKLOG = 128
IDLE_SECONDS = 75
"""For a client to ask again over the same connection."""
REOPEN_SECONDS = 30.0
"""A model that could not be opened may be there by then."""
LEAVING_SECONDS = 5
"""For answers on their way out."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 8012


class _Server(uvicorn.Server):
    """uvicorn's, that lets go of whoever waits for the model before it waits for them."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self.is_interrupted = False
        """By Ctrl-C; whatever becomes of the signal that uvicorn raises again in the end."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Notes which signal it was."""
        self.is_interrupted = self.is_interrupted or sig == signal.SIGINT
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops the model within a step; then all else can end."""
        await asyncio.to_thread(self._service.close)
        await super().shutdown(sockets)


class Listening:
    """One server: it has its port at once, and a model as soon as there is one."""

    def __init__(
        self, address: Address, open_worker: OpenWorker, settings: Settings, rules: Rules, *, is_lasting: bool = False
    ) -> None:
        """Binds the address; `run` serves on it. A lasting one goes on without a model, and asks for it again.

        Raises:
            UsageError: the address cannot be listened on, or is open to others without a key.
        """
        if address.host not in LOOPBACK and not rules.api_key:
            raise UsageError(
                f"{address.host} lets other machines in: set DG_LSP_API_KEY or give --api-key-file,"
                " or keep to 127.0.0.1"
            )
        self._socket = _bound(address)
        self._open_worker = open_worker
        self._is_lasting = is_lasting
        self._service: Service | None = None
        self._settings = settings
        self._rules = rules
        self._server: _Server | None = None
        self._is_stopped = False
        self.port: int = self._socket.getsockname()[1]

    @property
    def url(self) -> str:
        """Where clients find it."""
        host = self._socket.getsockname()[0]
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def run(self) -> int:
        """Serves until a signal or `stop` ends it; returns the process's exit code.

        Raises:
            ModelError, BackendError: the model cannot be opened.
        """
        _quieten()
        with self._socket:
            code = asyncio.run(self._serve())
        if self._server is not None and self._server.is_interrupted:
            raise KeyboardInterrupt
        return code

    def stop(self) -> None:
        """Ends `run` soon; from any thread."""
        self._is_stopped = True
        if self._server is not None:
            self._server.should_exit = True

    def close(self) -> None:
        """Gives the address back that `run` was never to serve on."""
        self._socket.close()

    def activity(self) -> tuple[int, bool]:
        """How many requests were answered so far, and whether some are not yet; from any thread."""
        service = self._service
        return (0, False) if service is None else (service.counts.num_answers, service.num_inside > 0)

    async def _serve(self) -> int:
        began = time.monotonic()
        self._service = service = Service(self._open_worker, self._settings, _say)
        self._server = server = _Server(_config(service, self._rules), service)
        server.should_exit = self._is_stopped
        serving = asyncio.create_task(server.serve([self._socket]))
        _say(f"listening on {self.url}")
        opening = asyncio.create_task(self._opened(service))
        await asyncio.wait({serving, opening}, return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            if error := opening.exception():
                # a server without a model is of no use, and whoever watches over it should know
                self.stop()
                await serving
                raise error
            _say(f"{opening.result().spec.name} ready after {time.monotonic() - began:.2f} s")
        await serving
        opening.cancel()
        return 0

    async def _opened(self, service: Service) -> Engine:
        """The engine, as soon as there is one; how that went wrong, unless that is to be outlasted.

        Raises:
            ModelError, BackendError: it could not be opened.
        """
        said = ""
        while True:
            try:
                return await service.opened()
            except DgLspError as error:
                if not self._is_lasting:
                    raise
                if str(error) != said:
                    said = str(error)
                    _say(said)
            await asyncio.sleep(REOPEN_SECONDS)
            service.reopen()


def _config(service: Service, rules: Rules) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(service, rules),
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=LEAVING_SECONDS,
    )


def _bound(address: Address) -> socket.socket:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            if sys.platform != "win32":  # there it would let two servers have one port
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
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


def _quieten() -> None:
    """Tracebacks may quote a buffer; nothing of that may reach standard error."""
    for name in ("uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.addHandler(logging.NullHandler())
        logger.propagate = False


def _say(message: str) -> None:
    sys.stderr.write(f"dg-lsp: {message}\n")
    sys.stderr.flush()
