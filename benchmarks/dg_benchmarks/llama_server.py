"""llama-server's `/infill` as a contender, on the same weights and threads."""

import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dg_lsp.backends.llamacpp.library import NO_BACKTRACE
from dg_lsp.bench.dataset import TestCase
from dg_lsp.bench.metrics import Attempt
from dg_lsp.bench.runner import ANSWER_SECONDS, DEFAULT_OPTIONS, RequestOptions, attempt_for
from dg_lsp.canvas.prompt_format import prompt_of
from dg_lsp.canvas.spec import FimOrder, ModelSpec
from dg_lsp.errors import BackendError, UsageError

START_SECONDS = 120.0
"""Time limit for the start: a large model may be on a slow disk."""


class LlamaServer:
    """See `Contender`. Starts llama-server and sends greedy requests; the answers are not postprocessed."""

    name = "llama-server"

    def __init__(
        self,
        program: Path,
        model: Path,
        spec: ModelSpec,
        options: RequestOptions = DEFAULT_OPTIONS,
        *,
        threads: int,
        gpu_layers: int,
        max_tokens: int,
    ) -> None:
        """Starts the server with the same threads, prompt length and prompt order, and waits until it is ready.

        Raises:
            UsageError: the program cannot be started, or the model has no fill-in-the-middle tokens.
            BackendError: the server ended or did not become ready.
        """
        if spec.fim is None:
            raise UsageError(f"{spec.name} has no fill-in-the-middle tokens, which llama-server's /infill needs")
        self._options = options
        self._max_tokens = max_tokens
        self._max_prompt_tokens = spec.max_prompt_tokens
        self.notes = ["llama-server's latency is that of a local client; its answers are not postprocessed."]
        # the server uses as much of the file as fits into a batch
        batch = spec.max_prompt_tokens
        context = -(-(batch + 2 * max_tokens + 16) // 256) * 256
        arguments = ["--model", str(model), "--threads", str(threads), "--threads-batch", str(threads)]
        arguments += ["--ctx-size", str(context), "--batch-size", str(batch), "--parallel", "1"]
        arguments += ["--spm-infill"] if spec.fim.order is FimOrder.SUFFIX_FIRST else []
        arguments += ["--n-gpu-layers", str(gpu_layers)] if gpu_layers >= 0 else []
        self._start(program, arguments)

    def answer(self, case: TestCase) -> Attempt:
        """See `Contender.answer`."""
        if self._options.is_warm:
            self._post({**self._query(case.before_last_key()), "n_predict": 0})
        query = self._query(case)
        start = time.perf_counter()
        reply = self._post(query)
        ms = 1e3 * (time.perf_counter() - start)
        timings: Mapping[str, float] = reply.get("timings", {})
        num = int(timings.get("predicted_n", 0))
        prefill_ms = float(timings.get("prompt_ms", 0.0))
        model_ms = prefill_ms + float(timings.get("predicted_ms", 0.0))
        lines = str(reply.get("content", "")).split("\n")[: self._options.num_lines(case)]
        text = "\n".join(lines).rstrip()
        attempt = attempt_for(case, self.name, "autoregressive", text, ms, None if text else "empty")
        return replace(attempt, steps=num, tokens=num, prefill_ms=prefill_ms, model_ms=model_ms)

    def close(self) -> None:
        """See `Contender.close`."""
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _start(self, program: Path, arguments: Sequence[str]) -> None:
        """Starts the server and waits for `/health`; closes it on failure."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        command = [str(program), "--host", "127.0.0.1", "--port", str(self._port), *arguments]
        try:
            # a session of its own, because Ctrl-C must reach only this process
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env={**os.environ, **NO_BACKTRACE},
                start_new_session=True,
            )
        except OSError as error:
            self._log.close()
            raise UsageError(f"cannot run {program}: {error.strerror or error}; give llama-server's path") from error
        deadline = time.monotonic() + START_SECONDS
        try:
            while not self._is_healthy():
                if (code := self._process.poll()) is not None:
                    if code < 0 and "--no-repack" not in arguments:
                        # builds by GCC crash on weights that are repacked for AMX; our own build does not repack them
                        self.notes.append("llama-server crashed on repacked weights and ran with --no-repack.")
                        self.close()
                        return self._start(program, [*arguments, "--no-repack"])
                    cause = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
                    raise BackendError(f"llama-server ended early ({cause}): {self._last_line()}")
                if time.monotonic() > deadline:
                    raise BackendError(f"llama-server was not ready after {START_SECONDS:.0f} s: {self._last_line()}")
                time.sleep(0.05)
        except BaseException:
            self.close()
            raise

    def _is_healthy(self) -> bool:
        with suppress(OSError, http.client.HTTPException, ValueError):
            return self._request("GET", "/health", None, 2.0)[0] == http.client.OK
        return False

    def _last_line(self) -> str:
        """The last line of the log with an error, or the last line."""
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines or ["no output"])[-1][:300]

    def _query(self, case: TestCase) -> dict[str, Any]:
        prompt = prompt_of(case.snapshot, case.offset, self._max_prompt_tokens)
        return {
            "id_slot": 0,
            "input_prefix": prompt.prefix,
            "input_suffix": prompt.suffix,
            "input_extra": [],
            "prompt": "",
            "n_predict": self._max_tokens,
            "stop": ["\n"] if self._options.num_lines(case) == 1 else [],
            "temperature": 0.0,
            "samplers": ["temperature"],
            "stream": False,
            "cache_prompt": True,
            "t_max_predict_ms": round(self._options.early_stop_ms or 0) or -1,
        }

    def _post(self, query: Mapping[str, Any]) -> dict[str, Any]:
        try:
            status, tree = self._request("POST", "/infill", json.dumps(query).encode(), ANSWER_SECONDS)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise BackendError(f"llama-server does not answer ({error}): {self._last_line()}") from error
        if status != http.client.OK or not isinstance(tree, dict):
            message = tree["error"]["message"] if isinstance(tree, dict) and "error" in tree else tree
            raise BackendError(f"llama-server refused /infill (status {status}): {str(message)[:300]}")
        return tree

    def _request(self, method: str, path: str, body: bytes | None, seconds: float) -> tuple[int, Any]:
        """Status and JSON answer, on a connection of its own as plugins do: the server closes idle ones."""
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=seconds)) as connection:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())
