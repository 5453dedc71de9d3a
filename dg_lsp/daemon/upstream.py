"""One server behind a relay: the daemon over its socket, or a process of the relay's own. Light: a relay imports it.

Knows where a message begins and ends; knows nothing of what it says.
"""

import queue
import socket
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, BinaryIO

PATIENCE = 10.0
"""Seconds for a process to end by itself."""
_Heard = Callable[["Upstream", bytes | None], None]
"""Told each message's body, and None at the end; from another thread."""


def read_body(stream: BinaryIO | IO[bytes]) -> bytes | None:
    """One message's body; None at the end of the stream, or where it is no language server's."""
    length = None
    try:
        while line := stream.readline(1 << 16):
            if not line.strip():
                break
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-length" and value.strip().isdigit():
                length = int(value)
        if length is None:
            return None
        body = stream.read(length)
    except (OSError, ValueError):  # reset, or closed by us
        return None
    return body if len(body) == length else None


def framed(body: bytes) -> bytes:
    """A body as it goes over the wire."""
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


class Upstream(ABC):
    """Reads and writes in threads of its own: whoever sends never waits for a server that does not read."""

    def __init__(self, stream: BinaryIO | IO[bytes], heard: _Heard, *, is_daemon: bool) -> None:
        self.is_daemon = is_daemon
        self._heard = heard
        self._stream = stream
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_all, daemon=True)

    def start(self) -> None:
        """Begins to read and to write."""
        self._writer.start()
        threading.Thread(target=self._read_all, daemon=True).start()

    def send(self, body: bytes) -> None:
        """A message, as soon as the server reads."""
        self._outgoing.put(framed(body))

    def finish(self) -> None:
        """Lets what was sent go out, then hangs up."""
        self._outgoing.put(None)
        self._writer.join(PATIENCE)
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Hangs up at once."""

    def _read_all(self) -> None:
        with self._stream:
            while (body := read_body(self._stream)) is not None:
                self._heard(self, body)
        self._heard(self, None)

    def _write_all(self) -> None:
        with suppress(OSError, ValueError):  # a server that is gone is noticed where it is read
            while (data := self._outgoing.get()) is not None:
                self._write(data)

    @abstractmethod
    def _write(self, data: bytes) -> None: ...


class DaemonUpstream(Upstream):
    """The daemon, over a connection that has begun."""

    def __init__(self, connection: socket.socket, heard: _Heard) -> None:
        super().__init__(connection.makefile("rb"), heard, is_daemon=True)
        self._connection = connection

    def close(self) -> None:
        """See `Upstream.close`."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _write(self, data: bytes) -> None:
        self._connection.sendall(data)


class ChildUpstream(Upstream):
    """A process that serves this editor alone and ends with it."""

    def __init__(self, command: Sequence[str], heard: _Heard) -> None:
        """Raises: OSError: it cannot be started."""
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        super().__init__(self._process.stdout, heard, is_daemon=False)

    def close(self) -> None:
        """See `Upstream.close`."""
        assert self._process.stdin is not None
        self._outgoing.put(None)
        self._writer.join(1)
        if self._writer.is_alive():
            self._process.kill()  # it reads nothing; closing the pipe would wait for it
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()
