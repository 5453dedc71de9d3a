"""llama-server's `POST /infill`, on the same GGUF and the same threads. We start it, and we stop it."""

import http.client
import json
import math
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from dg_lsp.bench.sites import Site
from dg_lsp.bench.ways import ANSWER_SECONDS, Terms, before_last_key, first_lines
from dg_lsp.canvas.fim import SUFFIX_SHARE
from dg_lsp.canvas.spec import FimOrder, ModelSpec
from dg_lsp.context.window import CHARS_PER_TOKEN, prompt_at
from dg_lsp.errors import BackendError, UsageError
from dg_lsp.metrics.attempt import Attempt, Shown, is_same

START_SECONDS = 120.0
"""A large model on a slow disk takes that long."""
STOP_SECONDS = 10.0


class ServerProcess:
    """A `llama-server` of our own on a free port."""

    def __init__(self, program: Path, arguments: Sequence[str]) -> None:
        """Starts it; `wait` before the first request.

        Raises:
            UsageError: the program cannot be run.
        """
        self.port = _free_port()
        # what it says is looked at only when it fails; a pipe that nobody reads would stop it
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        command = [str(program), "--host", "127.0.0.1", "--port", str(self.port), *arguments]
        try:
            # a session of its own: Ctrl-C is for us, and we stop it in our turn
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True
            )
        except OSError as error:
            self._log.close()
            raise UsageError(f"cannot run {program}: {error.strerror or error}; give llama-server's path") from error

    def wait(self, seconds: float = START_SECONDS) -> None:
        """Until `/health` says that the model is loaded; closes it when that does not come.

        Raises:
            BackendError: it ended, or takes longer than that.
        """
        try:
            self._wait(seconds)
        except BaseException:
            self.close()
            raise

    @property
    def was_killed(self) -> bool:
        """A signal ended it: it crashed, and did not give up."""
        return (self._process.poll() or 0) < 0

    def last_words(self) -> str:
        """The last line it wrote that says something of an error, or the last of all."""
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines or ["it said nothing"])[-1][:300]

    def close(self) -> None:
        """Stops it; harmless when repeated."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._is_healthy():
            if self._process.poll() is not None:
                raise BackendError(f"llama-server ended before it was ready{self._cause()}: {self.last_words()}")
            if time.monotonic() > deadline:
                raise BackendError(f"llama-server was not ready after {seconds:.0f} s: {self.last_words()}")
            time.sleep(0.05)

    def _cause(self) -> str:
        code = self._process.poll() or 0
        return f" ({signal.Signals(-code).name})" if code < 0 else ""

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class ServerWay:
    """See `Way`. Greedy, as our autoregressive decoder is; the answer counts as it comes, nothing of it is judged."""

    name = "llama-server"

    def __init__(
        self,
        process: ServerProcess,
        terms: Terms,
        *,
        max_prompt_tokens: int,
        max_tokens: int,
        notes: Sequence[str] = (),
    ) -> None:
        """Takes the process over."""
        self._process = process
        self._terms = terms
        self._max_prompt_tokens = max_prompt_tokens
        self._max_tokens = max_tokens
        self._notes = notes

    @classmethod
    def start(
        cls,
        program: Path,
        model: Path,
        spec: ModelSpec,
        terms: Terms,
        *,
        threads: int,
        gpu_layers: int,
        max_tokens: int,
    ) -> Self:
        """Starts the server with our own threads, prompt length and order, and waits until it is ready.

        Raises:
            UsageError: the program cannot be run, or the model has no fill-in-the-middle tokens.
            BackendError: it does not get ready.
        """
        if spec.fim is None:
            raise UsageError(f"{spec.name} has no fill-in-the-middle tokens, which llama-server's /infill needs")
        # it takes as much of the file as fits a batch: three quarters of it before the cursor, a quarter after it
        batch = spec.max_prompt_tokens
        context = 256 * math.ceil((batch + 2 * max_tokens + 16) / 256)
        arguments = ["--model", str(model), "--threads", str(threads), "--threads-batch", str(threads)]
        arguments += ["--ctx-size", str(context), "--batch-size", str(batch), "--parallel", "1"]
        arguments += ["--spm-infill"] if spec.fim.order is FimOrder.SUFFIX_FIRST else []
        arguments += ["--n-gpu-layers", str(gpu_layers)] if gpu_layers >= 0 else []
        notes = ["llama-server's latency is that of a client on this machine; its answers are taken as they come."]
        process = ServerProcess(program, arguments)
        try:
            process.wait()
        except BackendError:
            if not process.was_killed:
                raise
            # stock builds by GCC crash in the first pass over weights packed for AMX; our own are not packed there
            process = ServerProcess(program, [*arguments, "--no-repack"])
            process.wait()
            notes.append("llama-server crashed with weights packed for this processor, and ran with --no-repack.")
        return cls(process, terms, max_prompt_tokens=batch, max_tokens=max_tokens, notes=notes)

    def answer(self, site: Site) -> Attempt:
        """See `Way.answer`; an answer that is refused ends the run."""
        if self._terms.is_warm:
            self._post({**self._question(before_last_key(site)), "n_predict": 0})
        question = self._question(site)
        start = time.perf_counter()
        reply = self._post(question)
        ms = 1e3 * (time.perf_counter() - start)
        text = first_lines(str(reply.get("content", "")), self._terms.num_lines(site)).rstrip()
        timings: Mapping[str, float] = reply.get("timings", {})
        num = int(timings.get("predicted_n", 0))
        prefill_ms = float(timings.get("prompt_ms", 0.0))
        return Attempt(
            site=site.id,
            kind=site.kind,
            way=self.name,
            decoder="autoregressive",
            want=site.want,
            shown=(Shown(ms, text),) if text else (),
            is_exact=is_same(text, site.want),
            passes=None,
            latency_ms=ms,
            steps=num,
            tokens=num,
            confidence=math.nan,
            rejection=None if text else "empty",
            prefill_ms=prefill_ms,
            model_ms=prefill_ms + float(timings.get("predicted_ms", 0.0)),
        )

    def notes(self) -> Sequence[str]:
        """See `Way.notes`."""
        return self._notes

    def close(self) -> None:
        """See `Way.close`."""
        self._process.close()

    def _question(self, site: Site) -> dict[str, Any]:
        """As an editor's plugin asks, but greedily and with our window of the file."""
        chars = self._max_prompt_tokens * CHARS_PER_TOKEN
        prompt = prompt_at(site.snapshot, site.offset, prefix_chars=chars, suffix_chars=int(chars * SUFFIX_SHARE))
        return {
            "id_slot": 0,
            "input_prefix": prompt.prefix,
            "input_suffix": prompt.suffix,
            "input_extra": [],
            "prompt": "",
            "n_predict": self._max_tokens,
            "stop": ["\n"] if self._terms.num_lines(site) == 1 else [],
            "temperature": 0.0,
            "samplers": ["temperature"],
            "stream": False,
            "cache_prompt": True,
            "t_max_predict_ms": round(self._terms.early_stop_ms) or -1,
        }

    def _post(self, question: Mapping[str, Any]) -> dict[str, Any]:
        body = json.dumps(question).encode()
        # a connection for each, as plugins have it: the server gives idle ones up, and a local one costs nothing
        connection = http.client.HTTPConnection("127.0.0.1", self._process.port, timeout=ANSWER_SECONDS)
        try:
            connection.request("POST", "/infill", body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            tree = json.loads(reply.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise BackendError(f"llama-server does not answer ({error}): {self._process.last_words()}") from error
        finally:
            connection.close()
        if reply.status != http.client.OK or not isinstance(tree, dict):
            raise BackendError(f"llama-server refused /infill (status {reply.status}): {_message(tree)}")
        return tree


def _message(tree: Any) -> str:
    """`{"error": {"message": ...}}`, or whatever came."""
    error = tree.get("error", tree) if isinstance(tree, dict) else tree
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
