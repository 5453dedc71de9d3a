"""A language server in a process of its own: its messages over pipes or TCP, and its memory."""

import contextlib
import json
import os
import queue
import re
import signal
import socket
import subprocess
import threading
from pathlib import Path

import psutil
from gates import wait_until

ROOT = Path(__file__).parents[2]
PATIENCE = 300
"""Seconds after which an answer is lost."""


class Process:
    """A server on standard input and output."""

    token, hello = "", b""

    def __init__(self, command, folder):
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
            "DG_LSP_DATA_DIR": str(folder / "data"),
        }
        environment |= {"DG_LSP_DAEMON_DIR": str(folder / "daemon"), "OMP_WAIT_POLICY": "passive"}
        environment["PYTHONFAULTHANDLER"] = "1"
        environment.pop("DG_LSP_TOKEN", None)
        self._errors = (folder / "errors").open("wb")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment, cwd=folder
        )
        self.messages, self.sizes = queue.Queue(), []
        self._memory = psutil.Process(self.process.pid)
        self._reader = threading.Thread(target=self._read, daemon=True)

    @property
    def errors(self):
        """What it has written on standard error."""
        return Path(self._errors.name).read_text(errors="replace")

    def connect(self):
        """Begins to read its messages."""
        self._out, self._source = self._streams()
        self._reader.start()

    def _streams(self):
        return self.process.stdin, self.process.stdout

    def _read(self):
        source = self._source
        with contextlib.suppress(ConnectionError):
            while line := source.readline():
                length = int(line.split(b":")[1])
                while source.readline().strip():
                    pass
                self.messages.put(json.loads(source.read(length)))
        self.messages.put(None)

    def send(self, data):
        with contextlib.suppress(ConnectionError):  # the end is noticed by `deliver`
            self._out.write(data)
            self._out.flush()

    @contextlib.contextmanager
    def limited(self):
        """Aborts the process, which writes its stacks, if what is done inside takes longer than `PATIENCE`."""
        timer = threading.Timer(PATIENCE, self.process.send_signal, [signal.SIGABRT])
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def deliver(self, client):
        """Waits until all answers have arrived; False if the process ended."""
        while not client.is_idle():
            message = self.messages.get()
            if message is None:
                return False
            client.receive(message)
        return True

    def sample(self):
        with contextlib.suppress(psutil.Error):
            self.sizes.append(self._memory.memory_info().rss)

    def close(self):
        """Ends the input; returns the exit code."""
        self._end_input()
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            stream.close()
        return code

    def _end_input(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


class TcpProcess(Process):
    """A server on TCP, whose first client with its token is served."""

    def __init__(self, command, folder):
        super().__init__(command, folder)
        pattern = re.compile(r"listening on (.*):(\d+)\n.*token = (\S+)\n")
        found = wait_until(lambda: pattern.search(self.errors), lambda: self.errors)
        self._address, self.token = (found[1], int(found[2])), found[3]
        params = {"capabilities": {}, "initializationOptions": {"token": self.token}}
        body = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).encode()
        self.hello = b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        """A first message that is accepted."""

    def approach(self, data):
        """Sends bytes on a connection of its own; returns what the server answers, None if it stays open."""
        with socket.create_connection(self._address, PATIENCE) as connection:
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                return b"".join(iter(lambda: connection.recv(1 << 16), b""))
            except ConnectionError:
                return b""
            except TimeoutError:
                return None

    def _streams(self):
        self._connection = socket.create_connection(self._address)
        return self._connection.makefile("wb"), self._connection.makefile("rb")

    def _end_input(self):
        with contextlib.suppress(OSError):  # the server has closed it
            self._connection.shutdown(socket.SHUT_WR)

    def close(self):
        code = super().close()
        for one in (self._out, self._source, self._connection):
            with contextlib.suppress(ConnectionError):
                one.close()
        return code
