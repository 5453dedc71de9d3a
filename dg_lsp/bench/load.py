"""Load generator for servers with an OpenAI-like API: prompts, concurrent requests, and their latency and throughput.

Each level of concurrency keeps that number of requests open: a new one is sent when one ends. Two servers take turns at
every level, in alternating order, so that a change in the machine's speed affects both. Every request begins with a
line of its own, so that no server can answer from a cache, and both servers get the same texts.
"""

import dataclasses
import datetime
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from dg_lsp.backends.remote.client import RemoteModel
from dg_lsp.backends.remote.dialects import RemoteAnswer, RemoteQuery, RemoteTask
from dg_lsp.backends.remote.errors import RemoteRequestError
from dg_lsp.bench.charts import latency_histogram
from dg_lsp.bench.dataset import TestCase, parse_case, read_lines
from dg_lsp.bench.gpu_usage import GpuMonitor, GpuUsage
from dg_lsp.bench.metrics import Table, count
from dg_lsp.bench.report import Page, Section, facts_table
from dg_lsp.bench.runner import RunHeader
from dg_lsp.canvas.prompt_format import prompt_of
from dg_lsp.context.document import Snapshot
from dg_lsp.context.languages import language_id_of, language_of
from dg_lsp.context.window import Prompt
from dg_lsp.engine.ttfue import first_lines_match, quantile, rounded, share
from dg_lsp.errors import InputFileError, RemoteError

ANSWER_SECONDS = 300.0
"""Time limit of an answer; a longer one is an error."""
REQUESTS_PER_CLIENT = 2
"""Least requests of a round, per client: fewer would measure the start and the end of the round."""
_EXPECTED = 'the format of HumanEval-Infilling, or {"prompt": "...", "suffix": "..."}'
_MEASURES = {
    "latency_p50_ms": ("latency p50, ms", ".0f"),
    "latency_p95_ms": ("latency p95, ms", ".0f"),
    "first_line_p50_ms": ("first line p50, ms", ".0f"),
    "first_useful_line_p50_ms": ("first useful line p50, ms", ".0f"),
    "useful": ("requests with a useful first line", ".1%"),
    "requests_per_s": ("requests/s", ".2f"),
    "tokens_per_s": ("tokens/s", ".1f"),
    "canvas_tokens_per_s": ("canvas tokens/s", ".1f"),
    "blocks_per_s": ("blocks/s", ".2f"),
    "num_answers": ("answers", "d"),
    "num_refused": ("refused", "d"),
    "num_errors": ("errors", "d"),
    "gpu_memory_gb": ("GPU memory, GB", ".2f"),
    "gpu_utilisation": ("GPU utilisation", ".0%"),
}
"""Label and format of each measure of a level."""
_WITHOUT_RATIO = ("num_answers", "num_refused", "num_errors", "gpu_memory_gb", "gpu_utilisation")

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Description and total to a function that advances."""


@dataclass(frozen=True, slots=True)
class LoadPrompt:
    """Text to complete. Without a suffix it is a text to continue, or the message of a chat."""

    id: str
    prefix: str
    suffix: str | None
    references: tuple[str, ...] = ()  # right texts; empty if they are unknown
    path: str = ""
    language: str = ""

    @classmethod
    def of_case(cls, case: TestCase) -> "LoadPrompt":
        """The prompt of a test case."""
        return cls(case.id, case.prefix, case.suffix, (case.reference,), case.path, case.language)

    def query(self, number: int, max_tokens: int, model: RemoteModel) -> RemoteQuery:
        """The request with this number, which its first line contains."""
        mark = language_of(self.language).commented(f"request {number}") or f"# request {number}"
        if self.suffix is None and (model.follows_instructions or model.continues_text):
            text = f"{mark}\n{self.prefix}"
            task = RemoteTask.CHAT if model.follows_instructions else RemoteTask.TEXT
            return RemoteQuery(task, Prompt(text, ""), max_tokens, seed=number, messages=(("user", text),))
        snapshot = Snapshot(f"file:///{self.path or self.id}", 0, self.prefix + (self.suffix or ""), self.language)
        prompt = prompt_of(snapshot, len(self.prefix), model.max_prompt_tokens)
        prompt = replace(prompt, prefix=f"{mark}\n{prompt.prefix}")
        return RemoteQuery(RemoteTask.FILL, prompt, max_tokens, seed=number, session=self.id)

    def is_useful(self, text: str) -> bool:
        """True if the first line equals that of a reference."""
        return any(first_lines_match(text, reference) for reference in self.references)


def read_prompts(path: Path) -> tuple[LoadPrompt, ...]:
    """Reads test cases, or objects with `prompt`, `suffix` and `path`, of a JSONL file, plain or gzip.

    Raises:
        InputFileError: the file is unreadable or empty, or a line has another format.
    """
    prompts = tuple(prompt for _, prompt in read_lines(path, _parse_prompt, _EXPECTED))
    if not prompts:
        raise InputFileError(f"{path} has no prompts: expected one JSON object per line")
    return prompts


def _parse_prompt(tree: Any, number: int) -> LoadPrompt:
    if isinstance(tree, dict) and "canonical_solution" in tree:
        return LoadPrompt.of_case(parse_case(tree))
    if not isinstance(tree, dict):
        raise TypeError("not an object")
    prompt, suffix, path = tree.get("prompt"), tree.get("suffix"), tree.get("path", "")
    if not isinstance(prompt, str):
        raise TypeError("prompt is not a string" if "prompt" in tree else "no prompt")
    if not isinstance(path, str) or not isinstance(suffix, str | None):
        raise TypeError("suffix or path is not a string")
    return LoadPrompt(f"line {number}", prompt, suffix, (), path, language_id_of(path) if path else "")


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How many requests are sent, and how many at a time."""

    levels: tuple[int, ...]
    """Requests that are open at the same time."""
    num_rounds: int
    num_warm_up: int  # uncounted requests to each server before each level
    max_tokens: int
    answer_seconds: float = ANSWER_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAnswer:
    """What became of one request; times are milliseconds since it was sent. Counts are 0 where none is reported."""

    prompt: str
    latency_ms: float
    first_line_ms: float | None = None  # when the first line with text was whole; None: it never was
    is_useful: bool | None = None  # false without an answer; None without a reference
    output_tokens: int = 0
    canvas_tokens: int = 0
    blocks: int = 0
    is_refused: bool = False  # the server has too much work
    error: str = ""

    @property
    def is_answered(self) -> bool:
        """Whether the server answered."""
        return not (self.is_refused or self.error)


@dataclass(frozen=True, slots=True)
class LoadRound:
    """One round of a server at a level."""

    server: str
    concurrency: int
    seconds: float
    answers: tuple[LoadAnswer, ...]
    gpu: GpuUsage | None


def run_load(
    servers: Mapping[str, RemoteModel],
    prompts: Sequence[LoadPrompt],
    plan: LoadPlan,
    monitor: GpuMonitor | None = None,
    progress: Progress = lambda *_: nullcontext(lambda _: None),
) -> Iterator[LoadRound]:
    """Yields every round when it has ended. Closing the generator, or Ctrl-C, cancels the open requests.

    Raises:
        RemoteError: a server answered no request of a warm-up, for another reason than too much work.
    """
    number = 0
    for level in plan.levels:
        for name, model in servers.items():
            warm = _round(name, model, level, list(islice(cycle(prompts), plan.num_warm_up)), -number - 1, plan)
            if warm.answers and all(answer.error for answer in warm.answers):
                raise RemoteError(warm.answers[0].error)
        number += plan.num_warm_up
        chosen = list(islice(cycle(prompts), max(len(prompts), REQUESTS_PER_CLIENT * level)))
        with progress(f"{level} at a time", len(chosen) * plan.num_rounds * len(servers)) as advance:
            for turn in range(plan.num_rounds):
                order = list(servers.items())
                for name, model in order if turn % 2 == 0 else reversed(order):
                    yield _round(name, model, level, chosen, number, plan, monitor, advance)
                number += len(chosen)


def _round(
    name: str,
    model: RemoteModel,
    level: int,
    prompts: Sequence[LoadPrompt],
    number: int,
    plan: LoadPlan,
    monitor: GpuMonitor | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> LoadRound:
    """Sends every prompt, `level` at a time. The requests have numbers from `number` on; negative ones go down."""
    stopped = threading.Event()

    def send(item: tuple[int, LoadPrompt]) -> LoadAnswer:
        index, prompt = item
        return _answer(model, prompt, number - index if number < 0 else number + index, plan, stopped)

    answers = []
    sampling: AbstractContextManager[list[GpuUsage]] = monitor.sampling() if monitor else nullcontext([])
    with sampling as usage, ThreadPoolExecutor(level) as pool:
        start = time.perf_counter()
        try:
            for answer in pool.map(send, enumerate(prompts)):
                answers.append(answer)
                advance(1)
        except BaseException:
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
        seconds = time.perf_counter() - start
    return LoadRound(name, level, seconds, tuple(answers), usage[0] if usage else None)


def _answer(
    model: RemoteModel, prompt: LoadPrompt, number: int, plan: LoadPlan, stopped: threading.Event
) -> LoadAnswer:
    query = prompt.query(number, plan.max_tokens, model)
    answer, line_ms = RemoteAnswer(), None
    start, is_refused, error = time.monotonic(), False, ""

    def elapsed_ms() -> float:
        return 1e3 * (time.monotonic() - start)

    try:
        with closing(model.stream(query, start + plan.answer_seconds)) as answers:
            for answer in answers:
                if stopped.is_set():
                    break
                if line_ms is None and answer.texts and "\n" in answer.texts[0].lstrip("\r\n"):
                    line_ms = elapsed_ms()
    except RemoteError as problem:
        is_refused = isinstance(problem, RemoteRequestError) and problem.is_refusal
        error = "" if is_refused else str(problem)
    latency_ms = elapsed_ms()
    if not (is_refused or error) and latency_ms >= 1e3 * plan.answer_seconds:
        error = f"{model.name} does not finish within {plan.answer_seconds:g} s"
    is_judged = bool(prompt.references)
    if is_refused or error:
        missed = False if is_judged else None
        return LoadAnswer(prompt=prompt.id, latency_ms=latency_ms, is_useful=missed, is_refused=is_refused, error=error)
    text = answer.texts[0] if answer.texts else ""
    return LoadAnswer(
        prompt=prompt.id,
        latency_ms=latency_ms,
        first_line_ms=latency_ms if line_ms is None and text.strip() else line_ms,
        is_useful=prompt.is_useful(text) if is_judged else None,
        output_tokens=answer.output_tokens,
        canvas_tokens=answer.canvas_tokens,
        blocks=answer.blocks,
    )


def summarize_load(rounds: Sequence[LoadRound]) -> dict[str, Any]:
    """Numbers of one server at one level, rounded to four digits; None where the server reports nothing.

    Latency counts answers only; the share of useful first lines counts every request. A rate is the sum over all rounds
    divided by their seconds.
    """
    listed = [answer for one in rounds for answer in one.answers]
    answered = [answer for answer in listed if answer.is_answered]
    seconds = sum(one.seconds for one in rounds)
    judged = [answer for answer in listed if answer.is_useful is not None]
    first = [(answer, answer.first_line_ms) for answer in answered if answer.first_line_ms is not None]
    latencies = [answer.latency_ms for answer in answered]
    usage = [one.gpu for one in rounds if one.gpu is not None]
    shares = [one.utilisation for one in usage if one.utilisation is not None]

    def rate(name: str) -> float | None:
        total = sum(getattr(answer, name) for answer in answered)
        return total / seconds if total else None

    summary: dict[str, Any] = rounded(
        {
            "latency_p50_ms": quantile(latencies, 0.5),
            "latency_p95_ms": quantile(latencies, 0.95),
            "first_line_p50_ms": quantile([ms for _, ms in first], 0.5),
            "first_useful_line_p50_ms": quantile([ms for answer, ms in first if answer.is_useful], 0.5),
            "useful": share(sum(bool(answer.is_useful) for answer in judged), len(judged)) if judged else None,
            "requests_per_s": share(len(answered), seconds),
            "tokens_per_s": rate("output_tokens"),
            "canvas_tokens_per_s": rate("canvas_tokens"),
            "blocks_per_s": rate("blocks"),
            "num_answers": len(answered),
            "num_refused": sum(answer.is_refused for answer in listed),
            "num_errors": sum(bool(answer.error) for answer in listed),
            "gpu_memory_gb": max((one.memory_bytes / 1e9 for one in usage), default=None),
            "gpu_utilisation": share(sum(shares), len(shares)) if shares else None,
        }
    )
    return summary


def load_levels(rounds: Sequence[LoadRound], servers: Sequence[str]) -> list[dict[str, Any]]:
    """By concurrency: the summary of each server, and with two servers the first one's numbers over the second's."""
    levels = []
    for level in dict.fromkeys(one.concurrency for one in rounds):
        own = {name: [one for one in rounds if (one.server, one.concurrency) == (name, level)] for name in servers}
        summaries = {name: summarize_load(listed) for name, listed in own.items()}
        tree: dict[str, Any] = {"concurrency": level, "servers": summaries}
        if len(summaries) > 1:
            ours, theirs = summaries.values()
            keys = [key for key in _MEASURES if _has_ratio(key, ours[key], theirs[key])]
            tree["ratio"] = rounded({key: ours[key] / theirs[key] for key in keys})
        levels.append(tree)
    return levels


def _has_ratio(key: str, ours: float | None, theirs: float | None) -> bool:
    return key not in _WITHOUT_RATIO and ours is not None and bool(theirs)


def load_tables(levels: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """One table per level: a row per measure that a server has, a column per server, and their ratio."""
    for level in levels:
        servers, ratio = level["servers"], level.get("ratio")
        rows = []
        for key, (label, form) in _MEASURES.items():
            values = [summary[key] for summary in servers.values()]
            if any(value is not None for value in values):
                texts = ["–" if value is None else format(value, form) for value in values]
                shown = [] if ratio is None else [f"{ratio[key]:.2f}" if key in ratio else ""]
                rows.append((label, *texts, *shown))
        columns = ("measure", *servers, *(() if ratio is None else ("ratio",)))
        caption = f"{level['concurrency']} at a time"
        yield Table(caption, columns, {"": rows})


def load_page(header: RunHeader, rounds: Sequence[LoadRound], notes: Sequence[str]) -> Page:
    """The page of a load run: its tables, the latency of all answers, machine and options."""
    levels = load_levels(rounds, list(dict.fromkeys(one.server for one in rounds)))
    latencies: dict[str, list[float]] = {}
    for one in rounds:
        listed = latencies.setdefault(f"{one.concurrency} at a time, {one.server}", [])
        listed += [answer.latency_ms for answer in one.answers if answer.is_answered]
    num = sum(map(len, latencies.values()))
    facts = [facts_table("Machine", dataclasses.asdict(header.machine)), facts_table("Options", header.options)]
    sections = (
        Section("numbers", "Numbers", list(load_tables(levels))),
        Section("charts", "Latency", [latency_histogram(latencies)] if num else []),
        Section("machine", "Machine and options", facts),
    )
    lead = f"{count(num, 'answer')} of {header.model}."
    return Page(f"dg-lsp bench serve: {header.model}", datetime.date.today().isoformat(), lead, notes, sections)
