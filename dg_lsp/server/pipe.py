"""Copies bytes between standard input, standard output and a socket whose other end is a session.

`dg-lsp lsp` does so in threads. Where a daemon runs, the process that an editor starts is `python -I -S pipe.py FD`,
with an authenticated connection as FD: it imports nothing of dg_lsp, because every editor window has one. It parses
nothing, and ends when the daemon closes the connection; the editor then starts a new one.
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
    threading.Thread(target=_copy_input_and_leave, args=(connection,), daemon=True).start()
    return copy_output(connection, 1)


def copy_input(connection: socket.socket) -> None:
    """Sends standard input until it ends, and its end.

    Reads the descriptor: a daemon thread inside `sys.stdin.buffer` would hold its lock at interpreter exit.
    """
    try:
        while data := os.read(0, _CHUNK):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    except OSError:  # the session has ended
        pass


def copy_output(connection: socket.socket, output: int) -> int:
    """Writes what arrives until the session ends, and closes the connection; returns the exit code of the session."""
    code = 1
    with connection:
        try:
            while data := connection.recv(_CHUNK):
                if data.endswith(END_OF_SESSION):
                    code, data = 0, data[:-1]
                while data:
                    data = data[os.write(output, data) :]
        except OSError:  # the daemon crashed, or the editor reads no more
            pass
    return code


def _copy_input_and_leave(connection: socket.socket) -> None:
    copy_input(connection)
    time.sleep(_LEAVING_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(run(socket.socket(fileno=int(sys.argv[1]))))
