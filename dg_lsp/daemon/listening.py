"""The daemon: one for a place, which its lock says; it listens, answers, and leaves when it is told or not needed."""

import os
import secrets
import selectors
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from filelock import FileLock, Timeout

from dg_lsp import __version__
from dg_lsp.daemon.place import Place, Record
from dg_lsp.daemon.pool import Pool
from dg_lsp.daemon.session import Refusal, answer, hello_of, run_session
from dg_lsp.engine.engine import Engine
from dg_lsp.errors import DaemonError, DaemonRunsError
from dg_lsp.server.app import quieten
from dg_lsp.settings import Settings

MAX_CONNECTIONS = 64
_BACKLOG = 32
_TICK = 1.0
_LEAVING_SECONDS = 5.0


class Daemon:
    """Binds at once; serves with `run`."""

    def __init__(
        self,
        place: Place,
        open_engine: Callable[[Settings], Engine],
        *,
        idle_seconds: float,
        is_lingering: bool = False,
        port: int | None = None,
    ) -> None:
        """A lingering daemon leaves once nobody has needed it for `idle_seconds`; a port means TCP on loopback.

        Raises:
            DaemonRunsError: there is a daemon.
            DaemonError: the place cannot be made or listened on.
        """
        self._place = place
        self._lock = _locked(place)
        self._idle_seconds = idle_seconds
        self._is_lingering = is_lingering
        self._pool = Pool(open_engine, idle_seconds)
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._began = self._last_left = time.monotonic()
        self._is_stopping = threading.Event()
        place.clear()  # whoever left these is gone: the lock was free
        try:
            self._listener = _unix_listener(place) if port is None else _tcp_listener(port)
        except OSError as error:
            self._lock.release()
            raise DaemonError(f"the daemon cannot listen ({error.strerror or error})") from error
        self._ear, self._bell = socket.socketpair()
        for end in (self._ear, self._bell):
            end.setblocking(False)
        name = self._listener.getsockname()
        self._socket_path = Path(name) if isinstance(name, str) else None
        where = {"path": name} if isinstance(name, str) else {"host": name[0], "port": name[1]}
        self._record = Record(__version__, os.getpid(), secrets.token_urlsafe(32), secrets.token_urlsafe(32), **where)

    @property
    def address(self) -> str:
        """For people."""
        return self._record.address

    def run(self, on_ready: Callable[[], None] = lambda: None) -> int:
        """Serves until a signal, a caller or idleness ends it; returns the process's exit code."""
        quieten()
        threading.excepthook = _say_kind
        self._place.write(self._record)
        try:
            with self._listener, selectors.DefaultSelector() as selector:
                self._wake_on_signals()
                for source in (self._listener, self._ear):
                    selector.register(source, selectors.EVENT_READ)
                on_ready()
                while not self._is_stopping.is_set():
                    if any(key.fileobj is self._listener for key, _ in selector.select(_TICK)):
                        self._accept()
                    self._pool.sweep()
                    if self._is_lingering and self._is_idle():
                        break
        finally:
            self._leave()
        return 0

    def stop(self) -> None:
        """Ends `run` at once; from any thread."""
        self._is_stopping.set()
        with suppress(OSError):  # it has ended
            self._bell.send(b"!")

    def _wake_on_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # a test's; signals are not its own
        signal.set_wakeup_fd(self._bell.fileno(), warn_on_full_buffer=False)

        def leave(_number: int, _frame: FrameType | None) -> None:
            self._is_stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, leave)

    def _is_idle(self) -> bool:
        return not self._connections and time.monotonic() - self._last_left > self._idle_seconds

    def _accept(self) -> None:
        with suppress(OSError):  # a caller that is gone again
            connection, _ = self._listener.accept()
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            if len(self._connections) >= MAX_CONNECTIONS:
                answer(connection, {"refused": f"the daemon serves {MAX_CONNECTIONS} editors already"})
                connection.close()
                return
            self._connections[connection] = thread
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            hello = hello_of(connection, self._record)
            if hello.get("want") == "session":
                run_session(connection, hello, self._pool)
            else:
                self._answer(connection, hello)
        except Refusal as refusal:
            answer(connection, {"refused": str(refusal)})
        except (OSError, ValueError):
            pass  # whoever does not speak as we do is hung up on
        finally:
            self._last_left = time.monotonic()
            self._connections.pop(connection, None)
            connection.close()

    def _answer(self, connection: socket.socket, hello: dict[str, Any]) -> None:
        if hello.get("want") == "stop":
            answer(connection, {"stopping": os.getpid()})
            self.stop()
            return
        answer(
            connection,
            {
                "version": __version__,
                "pid": os.getpid(),
                "address": self.address,
                "seconds": round(time.monotonic() - self._began, 1),
                "sessions": len(self._connections) - 1,
                "models": self._pool.facts(),
                "memory_bytes": psutil.Process().memory_info().rss,
            },
        )

    def _leave(self) -> None:
        """Nobody finds it any more; then all sessions end, then the models, then the lock."""
        self._place.clear()
        if self._socket_path is not None and self._socket_path != self._place.socket:
            self._socket_path.unlink(missing_ok=True)
            self._socket_path.parent.rmdir()
        threads = dict(self._connections)
        for connection in threads:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads.values():
            thread.join(_LEAVING_SECONDS)
        self._pool.close()
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)
        self._ear.close()
        self._bell.close()
        self._lock.release()


def _locked(place: Place) -> FileLock:
    try:
        place.make()
        lock = FileLock(place.lock, mode=0o600, thread_local=False)
        lock.acquire(timeout=0)
    except Timeout as error:
        raise DaemonRunsError("a daemon runs already: see dg-lsp daemon status") from error
    except OSError as error:
        raise DaemonError(
            f"{place.folder} cannot be used ({error.strerror or error}); set DG_LSP_DAEMON_DIR"
        ) from error
    return lock


def _unix_listener(place: Place) -> socket.socket:
    if sys.platform == "win32":
        return _tcp_listener(0)
    # a folder of its own where the place's path is too long for a socket
    path = place.socket or Path(tempfile.mkdtemp(prefix="dg-lsp-")) / "daemon.sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def _tcp_listener(port: int) -> socket.socket:
    """On loopback alone: the token goes over the wire as it is."""
    return socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)


def _say_kind(args: "threading.ExceptHookArgs") -> None:
    """A traceback may quote a buffer."""
    sys.stderr.write(f"dg-lsp: {args.exc_type.__name__} in a session\n")
