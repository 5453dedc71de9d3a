"""A real llama-server with the bundled model; a restart keeps the port."""

import os
import shutil
import signal
import socket
import subprocess
import time

import httpx2

from dg_lsp.models.registry import locate

VARIABLE = "DG_LSP_LLAMA_SERVER"
PROGRAM = os.environ.get(VARIABLE) or shutil.which("llama-server")
WHY_NOT = f"no llama-server on PATH or in {VARIABLE}"
TIMEOUT = 60


class LlamaServer:
    def __init__(self, *arguments):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        # the prompt of the bundled model starts with the suffix; builds by GCC crash with weights packed for AMX
        plain = ["--threads", "1", "--ctx-size", "4096", "--parallel", "2", "--spm-infill", "--no-repack"]
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--model", str(locate("dg-mini"))]
        self._command = [PROGRAM, *where, *plain, *arguments]
        self._process = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        """Returns before the model is loaded."""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def wait(self):
        deadline = time.monotonic() + TIMEOUT
        while self._get("/health") is None:
            assert self._process.poll() is None, "llama-server has ended"
            assert time.monotonic() < deadline, "llama-server is not ready"
            time.sleep(0.02)
        return self

    def wait_idle(self, seconds=TIMEOUT):
        """Waits until no slot computes."""
        deadline = time.monotonic() + seconds
        while self.is_busy:
            assert time.monotonic() < deadline, "a slot still computes"
            time.sleep(0.005)

    @property
    def is_busy(self):
        return any(slot["is_processing"] for slot in self._get("/slots"))

    def stop(self):
        """Freezes the process; its connections stay open."""
        self._process.send_signal(signal.SIGSTOP)

    def kill(self):
        """Kills the process. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(TIMEOUT)

    def _get(self, path):
        try:
            reply = httpx2.get(self.url + path, timeout=TIMEOUT, trust_env=False)
        except httpx2.TransportError:
            return None
        return reply.json() if reply.status_code == 200 else None
