"""llama-diffusion-cli, on our own weights written as an architecture that it takes (see `twin.relabel`).

It is a program for one prompt: every answer starts a process and loads the model, which is counted in none of its times
but told beside them. It has no cache: each step computes the prompt again, and that prompt sees the canvas, as the
weights were not trained. So its times are those of its steps, and its texts show what that costs.
"""

import math
import os
import re
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from dg_lsp.bench.sites import Site
from dg_lsp.bench.twin import Sentinels, relabel
from dg_lsp.bench.ways import ANSWER_SECONDS, TERMS, Terms, first_lines
from dg_lsp.canvas.fim import SUFFIX_SHARE, fim_prompt, prompt_parts
from dg_lsp.canvas.layout import TokenIds
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.context.window import CHARS_PER_TOKEN, prompt_at
from dg_lsp.errors import BackendError, UsageError
from dg_lsp.metrics.attempt import Attempt, Shown, is_same

LINE, LINES = 16, 32
"""Canvas for one line and for more, as the engine's."""
_PLAIN = {"LLAMA_ARG_LOG_PREFIX": "0", "LLAMA_ARG_LOG_TIMESTAMPS": "0"}
"""Its answer is a log message."""
_TIMES = re.compile(r"total time: ([\d.]+) ?ms, time per step: [\d.]+ ?ms, sampling time per step: [\d.]+ ?ms\s*?\n")


class CommandWay:
    """See `Way`. One token a step unless told otherwise, the surest first; greedy."""

    name = "llama-diffusion-cli"

    def __init__(
        self,
        program: Path,
        model: Path,
        spec: ModelSpec,
        tokenizer: Tokenizer,
        terms: Terms = TERMS,
        *,
        threads: int,
        num_steps: int = 0,
    ) -> None:
        """`model` is one of ours; `num_steps` is for a whole canvas, 0 as many as it is long.

        Raises:
            UsageError: the model cannot be relabelled.
        """
        self._program, self._spec, self._tokenizer = program, spec, tokenizer
        self._terms, self._threads, self._num_steps = terms, threads, num_steps
        self._overheads: list[float] = []
        self._folder = tempfile.TemporaryDirectory(prefix="dg-lsp-")
        self._model = Path(self._folder.name, "model.gguf")
        try:
            self._sentinels: Sentinels = relabel(model, self._model, spec)
        except BaseException:
            self._folder.cleanup()
            raise

    def answer(self, site: Site) -> Attempt:
        """See `Way.answer`; `latency_ms` is what the program says of its denoising."""
        num_lines = self._terms.num_lines(site)
        length = LINE if num_lines == 1 else LINES
        steps = self._num_steps or length
        prompt_ids = self._prompt_ids(site)
        start = time.perf_counter()
        output = self._run(self._text(prompt_ids), len(prompt_ids) + length, steps)
        wall = 1e3 * (time.perf_counter() - start)
        found = _TIMES.search(output)
        if found is None:
            raise BackendError(f"llama-diffusion-cli gave no answer: {_last_words(output)}")
        ms = float(found[1])
        self._overheads.append(wall - ms)
        text = output[found.end() :].partition(self._sentinels.end)[0].removeprefix("\n")
        text = first_lines(text, num_lines).rstrip()
        return Attempt(
            site=site.id,
            kind=site.kind,
            way=self.name,
            decoder="diffusion",
            want=site.want,
            shown=(Shown(ms, text),) if text else (),
            is_exact=is_same(text, site.want),
            passes=None,
            latency_ms=ms,
            steps=steps,
            tokens=length,
            confidence=math.nan,
            rejection=None if text else "empty",
            prefill_ms=0.0,
            model_ms=ms,
        )

    def notes(self) -> Sequence[str]:
        """See `Way.notes`."""
        told = "llama-diffusion-cli runs the same weights as another architecture: its prompt sees the canvas."
        if not self._overheads:
            return (told,)
        ms = statistics.median(self._overheads)
        return (told, f"Its times leave out the start of its process and the load of its model, {ms:.0f} ms each time.")

    def close(self) -> None:
        """See `Way.close`."""
        self._folder.cleanup()

    def _prompt_ids(self, site: Site) -> TokenIds:
        chars = self._spec.max_prompt_tokens * CHARS_PER_TOKEN
        prompt = prompt_at(site.snapshot, site.offset, prefix_chars=chars, suffix_chars=int(chars * SUFFIX_SHARE))
        return fim_prompt(prompt, self._tokenizer, self._spec, self._spec.max_prompt_tokens)

    def _text(self, prompt_ids: TokenIds) -> str:
        prefix, suffix = (
            self._tokenizer.decode(ids).decode("utf-8", "replace") for ids in prompt_parts(prompt_ids, self._spec)
        )
        names = self._sentinels
        return f"{names.suffix}{suffix}{names.prefix}{prefix}{names.middle}"

    def _run(self, prompt: str, length: int, steps: int) -> str:
        """Everything that it wrote; the sequence is filled up to `length` tokens."""
        command = [str(self._program), "--model", str(self._model), "--prompt", prompt, "--no-escape"]
        command += ["--threads", str(self._threads), "--threads-batch", str(self._threads), "--top-k", "1"]
        command += ["--ctx-size", str(length), "--batch-size", str(length), "--ubatch-size", str(length)]
        command += ["--diffusion-steps", str(steps), "--diffusion-eps", "0.001", "--diffusion-algorithm", "4"]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_PLAIN},
                timeout=ANSWER_SECONDS,
                check=False,
            )
        except OSError as error:
            raise UsageError(f"cannot run {self._program}: {error.strerror or error}") from error
        except subprocess.TimeoutExpired as error:
            raise BackendError(f"llama-diffusion-cli took more than {ANSWER_SECONDS:.0f} s for one answer") from error
        output = done.stdout.decode("utf-8", "replace")
        if done.returncode:
            raise BackendError(f"llama-diffusion-cli failed ({_cause(done.returncode)}): {_last_words(output)}")
        return output


def _cause(code: int) -> str:
    return f"exit code {code}" if code > 0 else signal.Signals(-code).name


def _last_words(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["it said nothing"])[-1][:300]
