"""The daemon: one for a place, which its lock says; it listens, answers, and leaves when it is told or not needed."""

import os
import secrets
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from dg_lsp import __version__
from dg_lsp.daemon.binding import listener, locked
from dg_lsp.daemon.deaths import Death, Deaths
from dg_lsp.daemon.place import Place, Record
from dg_lsp.daemon.pool import Pool
from dg_lsp.daemon.session import Refusal, answer, hello_of, run_session
from dg_lsp.daemon.working import Working
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.scheduler import SchedulerSession
from dg_lsp.errors import UsageError
from dg_lsp.server.app import silence_pygls_logging
from dg_lsp.settings import Settings
from dg_lsp.system import resident_bytes

if TYPE_CHECKING:  # only a daemon that serves HTTP loads what that needs
    from dg_lsp.http.server import HttpServer

MAX_CONNECTIONS = 64
_TICK = 1.0
OpenWeb = Callable[[Callable[[Settings], SchedulerSession]], "HttpServer | None"]
"""Binds an address for HTTP, given what takes a part in a model; None where it may not, and that is no harm."""
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
        open_web: OpenWeb | None = None,
    ) -> None:
        """A lingering daemon leaves once nobody has needed it for `idle_seconds`; a port means TCP on loopback.

        Raises:
            DaemonRunsError: there is a daemon.
            DaemonError: the place cannot be made or listened on.
            UsageError: as `open_web` does.
        """
        self._place = place
        self._lock = locked(place)
        self._idle_seconds = idle_seconds
        self._is_lingering = is_lingering
        self._open_engine = open_engine
        self._deaths, self._working = Deaths(place.folder), Working(place.folder)
        self._pool = Pool(self._open, idle_seconds, self._working)
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._sessions: set[socket.socket] = set()
        """Of the connections those that are editors; who was refused, or only asks something, is none."""
        self._began = self._last_left = time.monotonic()
        self._is_stopping = threading.Event()
        self._bury()
        self._web: HttpServer | None = None
        try:
            self._web = open_web(self._pool.share) if open_web is not None else None
            self._listener = listener(place, port)
        except UsageError:
            if self._web is not None:
                self._web.stop()
            self._lock.release()
            raise
        self._ear, self._bell = socket.socketpair()
        for end in (self._ear, self._bell):
            end.setblocking(False)
        name = self._listener.getsockname()
        self._socket_path = Path(name) if isinstance(name, str) else None
        where = {"path": name} if isinstance(name, str) else {"host": name[0], "port": name[1]}
        self._record = Record(__version__, os.getpid(), secrets.token_urlsafe(32), secrets.token_urlsafe(32), **where)

    @property
    def url(self) -> str | None:
        """Where HTTP is served."""
        return self._web.url if self._web is not None else None

    @property
    def address(self) -> str:
        """For people."""
        return self._record.address

    def run(self, on_ready: Callable[[], None] = lambda: None) -> int:
        """Serves until a signal, a caller or idleness ends it; returns the process's exit code."""
        silence_pygls_logging()
        threading.excepthook = _say_kind
        if _is_alone():
            self._working.listen()
        self._place.write(self._record)
        try:
            with self._listener, selectors.DefaultSelector() as selector:
                self._wake_on_signals()
                for source in (self._listener, self._ear):
                    selector.register(source, selectors.EVENT_READ)
                if self._web is not None:
                    self._web.start()
                on_ready()
                while not self._is_stopping.is_set():
                    if any(key.fileobj is self._listener for key, _ in selector.select(_TICK)):
                        self._accept()
                    self._pool.sweep()
                    self._working.sweep()
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
        if not _is_alone():
            return
        signal.set_wakeup_fd(self._bell.fileno(), warn_on_full_buffer=False)

        def leave(_number: int, _frame: FrameType | None) -> None:
            self._is_stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, leave)

    def _is_idle(self) -> bool:
        idle = time.monotonic() - self._last_left
        if self._web is not None:
            idle = min(idle, self._web.idle_seconds())
        return not self._connections and idle > self._idle_seconds

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
                self._serve_editor(connection, hello)
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

    def _serve_editor(self, connection: socket.socket, hello: dict[str, Any]) -> None:
        self._sessions.add(connection)
        try:
            run_session(connection, hello, self._pool)
        finally:
            self._sessions.discard(connection)

    def _open(self, settings: Settings) -> Engine:
        self._deaths.check(settings.model)
        return self._open_engine(settings)

    def _bury(self) -> None:
        """Takes away what a daemon left that did not leave by itself, and notes how it ended; the lock was free."""
        if self._place.read() is not None:
            how, models, words = self._working.last()
            self._deaths.note(how, models)
            with suppress(OSError), self._place.log.open("a", encoding="utf-8") as log:
                log.write(words)
        self._place.clear()
        self._working.clear()

    def _answer(self, connection: socket.socket, hello: dict[str, Any]) -> None:
        num_sessions = len(self._sessions)
        if hello.get("want") == "stop" or (hello.get("want") == "leave" and not num_sessions):
            answer(connection, {"stopping": os.getpid()})
            self.stop()
            return
        answer(
            connection,
            {
                "version": __version__,
                "pid": os.getpid(),
                "address": self.address,
                "http": self.url,
                "seconds": round(time.monotonic() - self._began, 1),
                "sessions": num_sessions,
                "models": self._pool.facts(),
                "deaths": [_facts(one) for one in self._deaths.recent()],
                "memory_bytes": resident_bytes(),
            },
        )

    def _leave(self) -> None:
        """Nobody finds it any more; then all sessions end, then the models, then the lock."""
        self._place.clear()
        if self._socket_path is not None and self._socket_path != self._place.socket:
            self._socket_path.unlink(missing_ok=True)
            self._socket_path.parent.rmdir()
        if self._web is not None:
            self._web.stop()
        threads = dict(self._connections)
        for connection in threads:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads.values():
            thread.join(_LEAVING_SECONDS)
        self._pool.close()
        if _is_alone():
            signal.set_wakeup_fd(-1)
        self._working.clear()
        self._ear.close()
        self._bell.close()
        self._lock.release()


def _say_kind(args: "threading.ExceptHookArgs") -> None:
    """A traceback may quote a buffer."""
    sys.stderr.write(f"dg-lsp: {args.exc_type.__name__} in a session\n")


def _is_alone() -> bool:
    """The process is the daemon's; in a test it is not, nor are its signals."""
    return threading.current_thread() is threading.main_thread()


def _facts(death: Death) -> dict[str, Any]:
    return {"seconds_ago": round(time.time() - death.at, 1), "how": death.how, "models": list(death.models)}
