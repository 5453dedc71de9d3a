"""Both ends of a relay, played by a test: the editor, and a daemon that says what it is told to."""

import json
import os
import socket
import threading
import time
from contextlib import suppress

from dg_lsp import __version__
from dg_lsp.daemon.place import Record
from dg_lsp.daemon.relay import Relay
from dg_lsp.daemon.upstream import framed, read_body

TIMEOUT = 30


class Editor:
    """The other end of a relay that runs in a thread."""

    def __init__(self, ways):
        source, self._out = (os.fdopen(end, mode) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True))
        self._in, sink = (os.fdopen(end, mode) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True))
        self.codes = []
        self.heard = []
        self.files = (source, sink, self._in, self._out)
        self.threads = [
            threading.Thread(target=lambda: self.codes.append(Relay(ways, source, sink).run())),
            threading.Thread(target=self._listen, daemon=True),
        ]
        for thread in self.threads:
            thread.start()

    def _listen(self):
        while (body := read_body(self._in)) is not None:
            self.heard.append(json.loads(body))

    def say(self, method=None, params=None, **more):
        message = {**more} if method is None else {"method": method, "params": params, **more}
        self._out.write(framed(json.dumps({"jsonrpc": "2.0", **message}).encode()))
        self._out.flush()

    def wait(self, is_it):
        end = time.monotonic() + TIMEOUT
        while not (found := [one for one in self.heard if is_it(one)]):
            assert time.monotonic() < end, self.heard
            time.sleep(0.01)
        return found[0]

    def answer(self, name):
        return self.wait(lambda one: one.get("id") == name and "method" not in one)

    def logged(self, part):
        return self.wait(lambda one: one.get("method") == "window/logMessage" and part in one["params"]["message"])

    def leave(self):
        self._out.close()
        self.threads[0].join(TIMEOUT)
        assert self.codes
        self.files[1].close()
        self.threads[1].join(TIMEOUT)
        for file in self.files:
            file.close()
        return self.codes[0]


class Puppet:
    """A daemon that only listens; what it says, a test says."""

    def __init__(self, place, hello=None):
        place.make()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(place.socket))
        place.socket.chmod(0o600)
        self.listener.listen()
        self.hello = {"version": __version__} if hello is None else hello
        self.heard = []
        self.connection = None
        self.is_there = threading.Event()
        place.write(Record(__version__, os.getpid(), "t", path=str(place.socket)))
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        self.connection, _ = self.listener.accept()
        with self.connection.makefile("rb") as stream:
            for answer in ({"version": __version__}, self.hello):
                stream.readline()
                self.connection.sendall(json.dumps(answer).encode() + b"\n")
            self.is_there.set()
            while (body := read_body(stream)) is not None:
                self.heard.append(json.loads(body))

    def say(self, **message):
        self.connection.sendall(framed(json.dumps({"jsonrpc": "2.0", **message}).encode()))

    def wait(self, method):
        end = time.monotonic() + TIMEOUT
        while not (found := [one for one in self.heard if one.get("method") == method]):
            assert time.monotonic() < end, self.heard
            time.sleep(0.01)
        return found[-1]

    def die(self):
        self.listener.close()
        if self.connection is not None:
            with suppress(OSError):  # the relay was faster, or this is the second time
                self.connection.shutdown(socket.SHUT_RDWR)
            self.thread.join(TIMEOUT)
            self.connection.close()
