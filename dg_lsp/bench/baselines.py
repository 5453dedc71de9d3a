"""Other programs as contenders: llama-server's `/infill` and llama-diffusion-cli, on the same weights and threads."""

import http.client
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np

from dg_lsp.backends.llamacpp.library import NO_BACKTRACE
from dg_lsp.bench.contenders import ANSWER_SECONDS, DEFAULT_OPTIONS, RequestOptions, attempt_for
from dg_lsp.bench.dataset import TestCase
from dg_lsp.bench.metrics import Attempt
from dg_lsp.canvas.fim import fim_layout
from dg_lsp.canvas.layout import Tokenizer
from dg_lsp.canvas.prompt_format import prompt_of
from dg_lsp.canvas.spec import FimOrder, ModelSpec
from dg_lsp.errors import BackendError, UsageError, with_extra

START_SECONDS = 120.0
"""Time limit for the start: a large model may be on a slow disk."""
LINE_LENGTH, BLOCK_LENGTH = 16, 32
"""Canvas lengths of llama-diffusion-cli for one line and for several, as in the engine."""
_PLAIN_LOG = {"LLAMA_ARG_LOG_PREFIX": "0", "LLAMA_ARG_LOG_TIMESTAMPS": "0"}
_TIMES = re.compile(r"total time: ([\d.]+) ?ms, time per step: [\d.]+ ?ms, sampling time per step: [\d.]+ ?ms\s*?\n")


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
        self._options, self._max_tokens, self._max_prompt_tokens = options, max_tokens, spec.max_prompt_tokens
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
        num, prefill_ms = int(timings.get("predicted_n", 0)), float(timings.get("prompt_ms", 0.0))
        model_ms = prefill_ms + float(timings.get("predicted_ms", 0.0))
        text = _first_lines(str(reply.get("content", "")), self._options.num_lines(case))
        costs = {"steps": num, "tokens": num, "prefill_ms": prefill_ms, "model_ms": model_ms}
        return attempt_for(case, self.name, "autoregressive", text, ms, rejection=None if text else "empty", **costs)

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
                    raise BackendError(f"llama-server ended early ({_cause(code)}): {self._last_line()}")
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
        self._log.seek(0)
        return _last_line(self._log.read().decode("utf-8", "replace"))

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


class LlamaDiffusionCli:
    """See `Contender`. llama-diffusion-cli with our weights, rewritten as an architecture that it supports.

    The program answers one prompt: every answer starts a process and loads the model. A note reports that time, which
    the latency excludes. It has no KV cache, and its prompt attends to the canvas, unlike in training.
    """

    name = "llama-diffusion-cli"

    def __init__(
        self,
        program: Path,
        model: Path,
        spec: ModelSpec,
        tokenizer: Tokenizer,
        options: RequestOptions = DEFAULT_OPTIONS,
        *,
        threads: int,
        num_steps: int = 0,
    ) -> None:
        """Writes the model; `num_steps` is for a whole canvas, 0 for one step per token.

        Raises:
            UsageError: the model cannot be rewritten.
        """
        self._program, self._spec, self._tokenizer = program, spec, tokenizer
        self._options, self._threads, self._num_steps = options, threads, num_steps
        self._overheads: list[float] = []
        self._folder = tempfile.TemporaryDirectory(prefix="dg-lsp-")
        self._model = Path(self._folder.name, "model.gguf")
        try:
            self._sentinels = write_as_rnd1(model, self._model, spec)
        except BaseException:
            self._folder.cleanup()
            raise

    def answer(self, case: TestCase) -> Attempt:
        """See `Contender.answer`. The latency is the denoising time that the program reports."""
        num_lines = self._options.num_lines(case)
        length = LINE_LENGTH if num_lines == 1 else BLOCK_LENGTH
        steps = self._num_steps or length
        limit = self._spec.max_prompt_tokens
        before_prefix, before_suffix, before_gap, end = self._sentinels
        layout = fim_layout(prompt_of(case.snapshot, case.offset, limit), self._tokenizer, self._spec, limit)
        prefix, suffix = (
            self._tokenizer.decode(ids).decode("utf-8", "replace") for ids in (layout.before_ids, layout.after_ids)
        )
        prefix += layout.removed.decode("utf-8", "replace")
        prompt = f"{before_suffix}{suffix}{before_prefix}{prefix}{before_gap}"
        start = time.perf_counter()
        output = self._run(prompt, len(layout.prompt_ids) + length, steps)
        wall_ms = 1e3 * (time.perf_counter() - start)
        times = _TIMES.search(output)
        if times is None:
            raise BackendError(f"llama-diffusion-cli printed no times: {_last_line(output)}")
        ms = float(times[1])
        self._overheads.append(wall_ms - ms)
        text = _first_lines(output[times.end() :].partition(end)[0].removeprefix("\n"), num_lines)
        costs = {"steps": steps, "tokens": length, "prefill_ms": 0.0, "model_ms": ms}
        return attempt_for(case, self.name, "diffusion", text, ms, rejection=None if text else "empty", **costs)

    @property
    def notes(self) -> Sequence[str]:
        """See `Contender.notes`."""
        notes = ["llama-diffusion-cli runs the same weights as another architecture: its prompt sees the canvas."]
        if self._overheads:
            ms = statistics.median(self._overheads)
            notes.append(f"Its times leave out the start of the process and the load of the model, {ms:.0f} ms each.")
        return notes

    def close(self) -> None:
        """See `Contender.close`."""
        self._folder.cleanup()

    def _run(self, prompt: str, length: int, steps: int) -> str:
        """Its whole output; `length` is the number of tokens of prompt and canvas."""
        command = [str(self._program), "--model", str(self._model), "--prompt", prompt, "--no-escape"]
        command += ["--threads", str(self._threads), "--threads-batch", str(self._threads), "--top-k", "1"]
        command += ["--ctx-size", str(length), "--batch-size", str(length), "--ubatch-size", str(length)]
        command += ["--diffusion-steps", str(steps), "--diffusion-eps", "0.001", "--diffusion-algorithm", "4"]
        environment = {**os.environ, **_PLAIN_LOG, **NO_BACKTRACE}
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                timeout=ANSWER_SECONDS,
                check=False,
            )
        except OSError as error:
            raise UsageError(f"cannot run {self._program}: {error.strerror or error}") from error
        except subprocess.TimeoutExpired as error:
            raise BackendError(f"llama-diffusion-cli took more than {ANSWER_SECONDS:.0f} s for one answer") from error
        output = done.stdout.decode("utf-8", "replace")
        if done.returncode:
            raise BackendError(f"llama-diffusion-cli failed ({_cause(done.returncode)}): {_last_line(output)}")
        return output


def write_as_rnd1(source: Path, target: Path, spec: ModelSpec) -> list[str]:
    """Writes a `qwen3` model as `rnd1`, tensor by tensor: the feed-forward network becomes the only expert.

    The end token becomes an ordinary one, so that llama.cpp prints it. Returns the spelling of the tokens before the
    prefix, before the suffix, before the gap, and at the end.

    Raises:
        UsageError: `gguf` is not installed, or the model has another architecture.
    """
    try:
        import gguf
    except ImportError as error:
        raise UsageError(f"this benchmark writes a model file: {with_extra('dev')}") from error
    reader = gguf.GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    if fields["general.architecture"] != "qwen3" or spec.fim is None or spec.fim.middle_id is None:
        raise UsageError(f"llama.cpp cannot run {source} as a diffusion model: use dg-mini")
    writer = gguf.GGUFWriter(target, "rnd1")
    tokens, kinds = fields["tokenizer.ggml.tokens"], list(fields["tokenizer.ggml.token_type"])
    kinds[spec.end_ids[0]] = int(gguf.TokenType.USER_DEFINED)
    fields["tokenizer.ggml.token_type"] = kinds
    for name, value in fields.items():
        if name not in ("general.architecture", "general.file_type"):
            kind, *items = reader.fields[name].types
            writer.add_key_value(name.replace("qwen3.", "rnd1.", 1), value, kind, items[-1] if items else None)
    writer.add_expert_count(1)
    writer.add_expert_used_count(1)
    writer.add_expert_feed_forward_length(fields["qwen3.feed_forward_length"])
    writer.add_diffusion_shift_logits(False)
    # without this template llama.cpp would wrap the prompt into a chat
    writer.add_chat_template("{{ messages[-1]['content'] }}")
    for tensor in reader.tensors:
        name, data = tensor.name.removesuffix(".weight"), tensor.data
        if name.endswith(("ffn_gate", "ffn_up", "ffn_down")):
            name, data = f"{name}_exps", data[None]
        writer.add_tensor(f"{name}.weight", data, raw_dtype=tensor.tensor_type)
    router = np.zeros((1, fields["qwen3.embedding_length"]), np.float32)
    for layer in range(fields["qwen3.block_count"]):
        writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", router)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ids = (spec.fim.prefix_id, spec.fim.suffix_id, spec.fim.middle_id, spec.end_ids[0])
    return [tokens[token] for token in ids]


def _first_lines(text: str, num: int | None) -> str:
    """The first `num` lines, or all for None, without trailing blanks."""
    return (text if num is None else "\n".join(text.split("\n")[:num])).rstrip()


def _last_line(output: str) -> str:
    """The last line with an error, or the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no output"])[-1][:300]


def _cause(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
