"""The daemon: serves editors from one pool of models, which sessions share, and ends when it is not needed."""

import asyncio
import faulthandler
import hmac
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from typing import Any

from dg_lsp import __version__
from dg_lsp.daemon.endpoint import DaemonRecord, Endpoint, receive, send
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.scheduler import Scheduler, SharedDevice
from dg_lsp.engine.ttfue import Usage
from dg_lsp.errors import DaemonError, UsageError
from dg_lsp.server.app import create_server
from dg_lsp.server.pipe import END_OF_SESSION
from dg_lsp.server.transport import Streams, socket_streams
from dg_lsp.settings import Settings, parse_settings
from dg_lsp.system import keep_heap_small, resident_bytes

IDLE_SECONDS = 600.0
"""A model without sessions is closed after this time, and a daemon that an editor started ends."""
_TICK = 0.5
_CLOSE_SECONDS = 3.0


@dataclass(slots=True, eq=False)
class _Model:
    """One model in memory, or on its way there."""

    key: Hashable
    name: str
    scheduler: Scheduler
    num_sessions: int = 0
    last_used: float = 0.0  # `time.monotonic` when its last session left

    @property
    def state(self) -> str:
        if not self.scheduler.ready.done():
            return "loading"
        if self.scheduler.ready.exception() is not None:
            return "failed"
        return "asleep" if self.scheduler.is_asleep else "ready"


class Pool:
    """One scheduler for each model and its runtime settings. Any thread may call."""

    def __init__(self, open_engine: Callable[[Settings], Engine]) -> None:
        self._open_engine = open_engine
        self._models: list[_Model] = []
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        """Held while models are closed. A thread that gets it finds their memory free."""
        self._device = SharedDevice()

    def share(self, settings: Settings) -> Scheduler:
        """The scheduler of these settings, for one more session; its model is opened if it is not open."""
        key = settings.model_key
        with self._lock:
            # what a model that failed was missing may be there by now
            model = next((model for model in self._models if model.key == key and model.state != "failed"), None)
            if model is None:
                scheduler = Scheduler(self._open, settings, self._device, self._leave)
                model = _Model(key, settings.model.name, scheduler)
                self._models.append(model)
            model.num_sessions += 1
        return model.scheduler

    def facts(self) -> list[dict[str, Any]]:
        """The models for `dg-lsp daemon status`, as JSON values."""
        with self._lock:
            return [
                {"model": model.name, "state": model.state, "sessions": model.num_sessions} for model in self._models
            ]

    def close_unused(self, idle_seconds: float, kept: Hashable = None) -> None:
        """Closes the models that have had no session for this time, but for the one with the key `kept`."""
        with self._closing:
            end = time.monotonic() - idle_seconds
            with self._lock:
                unused = [model for model in self._models if not model.num_sessions and model.last_used <= end]
                unused = [model for model in unused if model.key != kept]
                self._models = [model for model in self._models if model not in unused]
            for model in unused:
                model.scheduler.close()

    def close(self) -> None:
        """Closes all models, also those with sessions."""
        for model in self._models:
            model.scheduler.close()

    def _leave(self, scheduler: Scheduler) -> None:
        with self._lock:
            for model in self._models:
                if model.scheduler is scheduler:
                    model.num_sessions -= 1
                    model.last_used = time.monotonic()

    def _open(self, settings: Settings) -> Engine:
        """Opens an engine. Other models without a session are closed before, because it may need their memory."""
        self.close_unused(0.0, settings.model_key)
        return self._open_engine(settings)


class Daemon:
    """One daemon."""

    def __init__(
        self,
        endpoint: Endpoint,
        open_engine: Callable[[Settings], Engine],
        *,
        idle_seconds: float = IDLE_SECONDS,
        exit_when_idle: bool = False,
    ) -> None:
        """With `exit_when_idle` it ends after `idle_seconds` without a connection."""
        self._endpoint = endpoint
        self._idle_seconds = idle_seconds
        self._exit_when_idle = exit_when_idle
        self._pool = Pool(open_engine)
        self._usage = Usage()
        self._threads: dict[socket.socket, threading.Thread] = {}
        """Of the open connections."""
        self._sessions: set[socket.socket] = set()
        self._last_used = time.monotonic()
        self._is_stopping = False

    def run(self, on_ready: Callable[[], None] = lambda: None) -> int:
        """Serves until a signal, a request or idleness ends it; returns the exit code of the process.

        Raises DaemonRunsError if another daemon runs, DaemonError if the folder or the socket cannot be used.
        """
        with self._endpoint.acquire_lock():
            threading.excepthook = _print_kind
            keep_heap_small()
            if threading.current_thread() is threading.main_thread():  # not so in tests
                faulthandler.enable()
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, lambda *_: self.stop())
            self._endpoint.clear()  # what a daemon that crashed left behind
            with closing(self), self._endpoint.listen() as listener:
                listener.settimeout(_TICK)
                name = listener.getsockname()
                self._record = DaemonRecord(
                    pid=os.getpid(),
                    started=time.time(),
                    token=secrets.token_urlsafe(32),
                    proof=secrets.token_urlsafe(32),
                    address=name if isinstance(name, str) else f"{name[0]}:{name[1]}",
                )
                self._endpoint.write(self._record)
                on_ready()
                while not self._is_done():
                    self._accept(listener)
                    self._pool.close_unused(self._idle_seconds)
        return 0

    def stop(self) -> None:
        """Ends `run` and its sessions soon; any thread may call."""
        self._is_stopping = True

    def _is_done(self) -> bool:
        if self._is_stopping or self._threads or time.monotonic() - self._last_used <= self._idle_seconds:
            return self._is_stopping
        # a daemon of another version was started later: the user has updated dg-lsp
        records = self._endpoint.records().values()
        return self._exit_when_idle or any(record.started > self._record.started for record in records)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:  # no client, one that is gone again, or no descriptor for it
            time.sleep(0.0 if isinstance(error, TimeoutError) else _TICK)
            return
        self._threads[connection] = threading.Thread(target=self._serve, args=(connection,), daemon=True)
        self._threads[connection].start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            request = self._authenticate(connection)
            if (kind := request.get("want")) == "session":
                self._sessions.add(connection)
                self._run_session(connection, request)
            elif kind == "stop":
                self.stop()
                send(connection, {"stopping": os.getpid()})
            else:
                send(connection, self._status())
        except UsageError as error:
            with suppress(OSError):
                send(connection, {"refused": str(error)})
        except OSError:
            pass  # a client that is gone, or that does not speak this protocol
        finally:
            self._last_used = time.monotonic()
            self._sessions.discard(connection)
            self._threads.pop(connection, None)
            connection.close()

    def _authenticate(self, connection: socket.socket) -> dict[str, Any]:
        """The client's request, once both sides have proved that they can read the record."""
        hello = receive(connection)
        if not hmac.compare_digest(str(hello.get("token", "")).encode("utf-8", "replace"), self._record.token.encode()):
            raise DaemonError("the token is wrong")
        send(connection, {"proof": self._record.proof})
        return receive(connection)

    def _status(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "pid": os.getpid(),
            "address": self._record.address,
            "seconds": round(time.time() - self._record.started, 1),
            "sessions": len(self._sessions),
            "models": self._pool.facts(),
            "memory_bytes": resident_bytes(),
        }

    def _run_session(self, connection: socket.socket, request: Mapping[str, Any]) -> None:
        """Serves one editor until it leaves, in an event loop of its own: no session delays another one."""
        overrides = request.get("over") or {}
        settings = parse_settings(request.get("settings") or {})
        parse_settings(overrides)

        # the client's initializationOptions are merged in between: the command line wins
        server = create_server(self._pool.share, settings, overrides, self._usage)

        @asynccontextmanager
        async def session_streams() -> AsyncGenerator[Streams, None]:
            async with socket_streams(connection) as streams:
                yield streams
                if server.exit_code == 0:
                    streams[1].write(END_OF_SESSION)

        send(connection, {"session": "open"})
        connection.settimeout(None)
        asyncio.run(server.serve(session_streams()))

    def close(self) -> None:
        """Ends the sessions and closes the models."""
        self._endpoint.clear()
        threads = dict(self._threads)
        for connection in threads:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads.values():
            thread.join(_CLOSE_SECONDS)
        self._pool.close()


def _print_kind(args: threading.ExceptHookArgs) -> None:
    # a traceback may quote a buffer
    sys.stderr.write(f"dg-lsp: {args.exc_type.__name__} in a session\n")
