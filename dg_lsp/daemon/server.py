"""The daemon: serves editors from one pool of models, and leaves when it is not needed."""

import asyncio
import faulthandler
import hmac
import os
import secrets
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from dg_lsp import __version__
from dg_lsp.daemon.client import Endpoint, Record, Refused, receive, send
from dg_lsp.daemon.pipe import END_OF_SESSION
from dg_lsp.daemon.pool import CrashLog, Pool
from dg_lsp.engine.engine import Engine
from dg_lsp.errors import DaemonError, SettingsError
from dg_lsp.server.app import create_server, serve
from dg_lsp.server.transport import close_writer
from dg_lsp.settings import Settings, parse_settings
from dg_lsp.system import keep_heap_small, resident_bytes

IDLE_SECONDS = 600.0
"""A model without sessions is closed after this time, and a daemon that an editor started leaves."""
_LONGEST_HELLO = 1024
_TICK = 0.5
_CLOSE_SECONDS = 3.0


class Daemon:
    """One daemon. It listens at once; clients find it when `run` begins."""

    def __init__(
        self,
        endpoint: Endpoint,
        open_engine: Callable[[Settings], Engine],
        *,
        idle_seconds: float = IDLE_SECONDS,
        exit_when_idle: bool = False,
        is_tcp: bool = sys.platform == "win32",
    ) -> None:
        """With `exit_when_idle` it leaves after `idle_seconds` without a connection.

        Raises DaemonRunsError if another daemon runs, DaemonError if the folder or the socket cannot be used.
        """
        self._endpoint = endpoint
        self._lock = endpoint.acquire_lock()
        self._idle_seconds = idle_seconds
        self._exit_when_idle = exit_when_idle
        self._crash_log = CrashLog(endpoint.crashes)
        self._pool = Pool(open_engine, idle_seconds, self._crash_log)
        self._threads: dict[socket.socket, threading.Thread] = {}
        """Of the open connections."""
        self._sessions: set[socket.socket] = set()
        self._start = self._last_used = time.monotonic()
        self._is_stopping = self._is_withdrawn = False
        if endpoint.read() is not None:  # its owner held no lock: it did not leave by itself
            self._crash_log.add_crash()
        endpoint.clear()
        try:
            self._listener = endpoint.listen(is_tcp=is_tcp)
        except DaemonError:
            self._lock.release()
            raise
        name = self._listener.getsockname()
        address = {"path": name} if isinstance(name, str) else {"host": name[0], "port": name[1]}
        self._record = Record(__version__, os.getpid(), secrets.token_urlsafe(32), secrets.token_urlsafe(32), **address)

    def run(self, on_ready: Callable[[], None] = lambda: None) -> int:
        """Serves until a signal, a request or idleness ends it; returns the exit code of the process.

        Raises DaemonError if the folder cannot be written.
        """
        threading.excepthook = _print_kind
        keep_heap_small()
        if threading.current_thread() is threading.main_thread():  # not so in tests
            faulthandler.enable()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self.stop())
        try:
            with self._listener, selectors.DefaultSelector() as selector:
                self._endpoint.write(self._record)
                selector.register(self._listener, selectors.EVENT_READ)
                on_ready()
                while not self._is_done():
                    if selector.select(_TICK):
                        self._accept()
                    self._pool.sweep()
        finally:
            self._close()
        return 0

    def stop(self) -> None:
        """Ends `run` and its sessions soon; any thread may call."""
        self._is_stopping = True

    def _is_done(self) -> bool:
        if self._is_stopping or self._threads:
            return self._is_stopping
        is_idle = time.monotonic() - self._last_used > self._idle_seconds
        return self._is_withdrawn or (self._exit_when_idle and is_idle)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # a client that is gone again, or no descriptor for it
            time.sleep(_TICK)
            return
        self._threads[connection] = threading.Thread(target=self._serve, args=(connection,), daemon=True)
        try:
            self._threads[connection].start()
        except RuntimeError:  # no memory for another thread
            del self._threads[connection]
            connection.close()

    def _serve(self, connection: socket.socket) -> None:
        is_known = False
        try:
            request = self._authenticate(connection)
            is_known = True
            if (wanted := request.get("want")) != "session":
                try:
                    send(connection, self._answer(wanted))
                finally:
                    if wanted == "leave":
                        self._lock.release()
                return
            self._sessions.add(connection)
            _run_session(connection, request, self._pool)
        except Refused as refused:
            with suppress(OSError):
                send(connection, {"refused": str(refused)})
        except OSError:
            pass  # a client that is gone, or that does not speak this protocol
        finally:
            if is_known:
                self._last_used = time.monotonic()
            self._sessions.discard(connection)
            self._threads.pop(connection, None)
            connection.close()

    def _authenticate(self, connection: socket.socket) -> dict[str, Any]:
        """The client's request, once both sides have proved that they can read the record."""
        hello = receive(connection, _LONGEST_HELLO)
        if not hmac.compare_digest(str(hello.get("token", "")).encode("utf-8", "replace"), self._record.token.encode()):
            raise Refused("the token is wrong")
        send(connection, {"version": __version__, "proof": self._record.proof})
        return receive(connection)

    def _answer(self, wanted: object) -> dict[str, Any]:
        if wanted == "stop":
            self.stop()
            return {"stopping": os.getpid()}
        if wanted == "leave":
            self._withdraw()
            return {"leaving": os.getpid()}
        return {
            "version": __version__,
            "pid": os.getpid(),
            "gpu": self._endpoint.gpu,
            "address": self._record.address,
            "seconds": round(time.monotonic() - self._start, 1),
            "sessions": len(self._sessions),
            "models": self._pool.facts(),
            "crashes": [
                {"seconds_ago": round(time.time() - at, 1), "models": models}
                for at, models in self._crash_log.crashes()
            ],
            "memory_bytes": resident_bytes(),
        }

    def _withdraw(self) -> None:
        """No client finds this daemon any more, and its sessions go on. Another one waits for its lock."""
        if self._is_withdrawn:
            return
        self._is_withdrawn = True
        self._endpoint.clear()
        self._crash_log.close()

    def _close(self) -> None:
        self._withdraw()
        threads = dict(self._threads)
        for connection in threads:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads.values():
            thread.join(_CLOSE_SECONDS)
        self._pool.close()
        self._lock.release()


def _run_session(connection: socket.socket, request: Mapping[str, Any], pool: Pool) -> None:
    """Serves one editor until it leaves, in an event loop of its own: no session delays another one."""
    over = request.get("over") or {}
    try:
        settings = parse_settings(request.get("settings") or {})
        parse_settings(over)
    except (SettingsError, AttributeError) as error:
        raise Refused(f"the daemon cannot use the settings: {error}") from error

    async def session() -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        # the client's initializationOptions are merged in between: the command line wins
        server = create_server(pool.share, settings, over)
        try:
            if await serve(server, reader, writer) == 0:
                writer.write(END_OF_SESSION)
        finally:
            await close_writer(writer)

    send(connection, {"version": __version__})
    connection.settimeout(None)
    asyncio.run(session())


def _print_kind(args: threading.ExceptHookArgs) -> None:
    # a traceback may quote a buffer
    sys.stderr.write(f"dg-lsp: {args.exc_type.__name__} in a session\n")
