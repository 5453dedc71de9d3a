"""The process that an editor starts where a daemon runs: it copies bytes between standard input, output and a socket.

`python -I -S pipe.py FD`, with an authenticated connection as FD. It imports nothing of dg_lsp, because every editor
window has one. It parses nothing, and ends when the daemon closes the connection; the editor then starts a new one.
"""

import os
import socket
import sys
import threading
import time

END_OF_SESSION = b"\0"
"""Last byte of a session that ended with exit code 0. Neither JSON text nor the headers before it contain this byte."""
_LEAVING_SECONDS = 5.0
"""Time for the daemon to end a session whose editor has left."""
_CHUNK = 1 << 16


def run(connection: socket.socket) -> int:
    """Copies in both directions until the daemon closes the connection; returns the exit code of the session."""
    threading.Thread(target=_copy_input, args=(connection,), daemon=True).start()
    code = 1
    try:
        while data := connection.recv(_CHUNK):
            if data.endswith(END_OF_SESSION):
                code, data = 0, data[:-1]
            _write(data)
    except OSError:  # the daemon crashed, or the editor reads no more
        pass
    return code


def _copy_input(connection: socket.socket) -> None:
    try:
        while data := os.read(0, _CHUNK):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        return
    time.sleep(_LEAVING_SECONDS)
    os._exit(1)


def _write(data: bytes) -> None:
    unwritten = memoryview(data)
    while unwritten:
        unwritten = unwritten[os.write(1, unwritten) :]


if __name__ == "__main__":
    sys.exit(run(socket.socket(fileno=int(sys.argv[1]))))
