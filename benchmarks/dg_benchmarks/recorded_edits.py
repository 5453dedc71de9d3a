"""Answers that edit models gave, replayed to this program: the edits that it makes of them, and their scores.

    python -m dg_benchmarks.recorded_edits CLONE

CLONE is a clone of github.com/cursortab/cursortab.nvim (MIT), which has scenarios with requests and answers of
several models. The recorded answers stand in for those of the server of `remote.url`. As in that project, the score
is deltaChrF, the mean over the scenarios with an expected text, times the harmonic mean of the shares of these
scenarios in which something is shown, and of the others in which nothing is.
"""

import argparse
import base64
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx2

from dg_lsp.backends.remote import client
from dg_lsp.canvas.edit_prompt import EDIT_FORMATS, EditFormat
from dg_lsp.context.document import LineIndex, Snapshot, num_shared
from dg_lsp.context.edit_history import Edit
from dg_lsp.engine.edit_source import NextEditRequest, NextEditResult
from dg_lsp.engine.engine import drain
from dg_lsp.engine.remote_engine import RemoteEngine
from dg_lsp.settings import CompletionSettings, RemoteSettings

FOLDER = "server/eval"
MODELS = {
    "sweep-next-edit-0.5B": "sweep-v2",
    "sweep-next-edit-1.5B": "sweep-v2",
    "sweep-next-edit-7B": "sweep-v2",
    "zeta": "zeta",
    "zeta-2": "zeta-2",
    "mercuryapi": "mercury",
}
"""The format of each model's recorded prompts: that project gave all Sweep models one that is mostly version 2."""
REGIONS = {
    "sweep-v2": (r"<\|file_sep\|>current/[^\n]*\n", r"\n<\|file_sep\|>updated/[^\n]*\n"),
    "zeta": (r"<\|editable_region_start\|>\n", r"\n<\|editable_region_end\|>"),
    "zeta-2": (r"<<<<<<< CURRENT\n", r"\n=======\n<\[fim-middle\]>"),
    "mercury": (r"<\|code_to_edit\|>\n", r"\n<\|/code_to_edit\|>"),
}
"""Expressions around the lines to rewrite."""
NUM_ORDERS, BETA = 6, 2.0
"""Of chrF: lengths of character sequences, and the weight of recall."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A document with a cursor, the edits before, and the expected text; None where nothing is expected."""

    name: str
    path: str
    language: str
    text: str
    offset: int
    edits: tuple[Edit, ...]  # newest first
    expected: str | None


@dataclass(frozen=True, slots=True)
class Recording:
    """One request to a model, and its answer."""

    prompt: str
    answer: str
    body: dict[str, Any]  # of the response


@dataclass(frozen=True, slots=True)
class Outcome:
    """The edits of one scenario."""

    text: str  # with all edits
    is_shown: bool
    reason: str


def scenarios_of(source: str) -> Iterator[Scenario]:
    """The scenarios of one file: one for each position of the cursor."""
    head, *sections = re.split(r"^-- (\S+) --\n", source, flags=re.MULTILINE)
    fields = dict(line.split(": ", 1) for line in head.splitlines() if re.match(r"[\w-]+: ", line))
    parts = {name: text.removesuffix("\n") for name, text in zip(sections[::2], sections[1::2], strict=True)}
    text = parts["buffer.txt"]
    positions = [f"{fields['row']}:{fields['col']}", *fields.get("cursor-positions", "").split(", ")]
    for position in filter(None, positions):
        row, column = map(int, position.split(":"))
        lines = text.split("\n")
        offset = sum(len(line) + 1 for line in lines[: row - 1]) + min(column, len(lines[row - 1]))
        edits = tuple(_edits(parts.get("history", ""), text))[::-1]
        path, language = fields["file"], fields["language"]
        yield Scenario(fields["id"], path, language, text, offset, edits, parts.get("expected"))


def _edits(history: str, text: str) -> Iterator[Edit]:
    """The edits of a history, at the place where their new lines stand in the text."""
    for entry in re.split(r"^<\|file\|>.*\n", history, flags=re.MULTILINE)[1:]:
        old, _, new = entry.removeprefix("<|old|>\n").partition("<|new|>\n")
        new = new.removesuffix("\n")
        at = max(0, f"\n{text}\n".find(f"\n{new}\n"))
        line = text.count("\n", 0, at)
        lines = text.split("\n")
        stop = line + new.count("\n") + 1
        before, after = lines[max(0, line - 2) : line], lines[stop : stop + 2]
        yield Edit(
            line, "".join(f"{line}\n" for line in before), old, f"{new}\n", "".join(f"{line}\n" for line in after)
        )


def recordings_of(source: str) -> list[Recording]:
    """The requests of a file of recordings, with their answers."""
    entries = [json.loads(line) for line in source.splitlines()]
    bodies = {(entry["kind"], entry["interaction"]): _body(entry) for entry in entries if "body_b64" in entry}
    requests = [body for (kind, _), body in bodies.items() if kind == "request"]
    responses = [body for (kind, _), body in bodies.items() if kind == "response"]
    return [Recording(_prompt(request), _answer(body), body) for request, body in zip(requests, responses, strict=True)]


def _body(entry: Mapping[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(base64.b64decode(entry["body_b64"]))
    return body


def _prompt(request: Mapping[str, Any]) -> str:
    return str(request["prompt"] if "prompt" in request else request["messages"][0]["content"])


def _answer(body: Mapping[str, Any]) -> str:
    choice = body["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


class Replay:
    """Answers requests with a recorded answer in place of a server."""

    def __init__(self) -> None:
        self.recording: Recording
        self.written = ""
        """The beginning of the answer that was a part of the recorded prompt."""

    def client(self, _settings: RemoteSettings) -> httpx2.AsyncClient:
        """A client whose requests it answers."""
        return httpx2.AsyncClient(transport=httpx2.MockTransport(self._answer))

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        """The recorded response; with other lines at the end of the prompt, the answer goes on after these."""
        prompt = json.loads(request.content)["prompt"]
        lines = (self.written + self.recording.answer).splitlines(keepends=True)
        prefill = re.split(r"<\|file_sep\|>updated/[^\n]*\n", prompt)[-1] if self.written else ""
        [choice] = self.recording.body["choices"]
        text = "".join(lines[prefill.count("\n") :])
        content = json.dumps({**self.recording.body, "choices": [{**choice, "text": text}]}).encode()

        async def stream() -> AsyncIterator[bytes]:
            yield content

        return httpx2.Response(200, headers={"Content-Type": "application/json"}, content=stream())


def format_as_sent(form: EditFormat, model: str, scenario: Scenario, prompt: str) -> tuple[EditFormat, str]:
    """The format with the window of a recorded prompt, and the beginning of the answer that was a part of it."""
    start, end = REGIONS[form.name]
    found = re.search(f"{start}(.*?){end}(.*)", prompt, re.DOTALL)
    assert found is not None
    region = found[1].replace(form.cursor, "")
    first = scenario.text.count("\n", 0, max(0, scenario.text.find(region)))
    line = scenario.text.count("\n", 0, scenario.offset)
    above, below = max(0, line - first), max(0, first + region.count("\n") - line)
    sent = replace(form, names=(model.lower(),), editable_tokens=0, lines_above=above, lines_below=below)
    return sent, found[2] if form.has_prefill else ""


def outcome_of(replay: Replay, model: str, scenario: Scenario, recordings: Sequence[Recording]) -> Outcome:
    """The first edits that the recorded answers lead to."""
    form = EDIT_FORMATS[MODELS[model]]
    result = NextEditResult((), model)
    settings = RemoteSettings(url="http://localhost", model=model)
    with patch.object(client, "_client", replay.client):
        engine = RemoteEngine(client.RemoteModel(settings), CompletionSettings())
    try:
        for recording in recordings:
            sent, written = format_as_sent(form, model, scenario, recording.prompt)
            replay.recording = recording
            replay.written = written
            snapshot = Snapshot(f"file:///{scenario.path}", scenario.text, scenario.language)
            request = NextEditRequest(snapshot, LineIndex.of(scenario.text), scenario.edits, scenario.offset)
            with patch.dict(EDIT_FORMATS, {form.name: sent}, clear=True):
                result = drain(request.run(engine, float("inf")))
            if result.proposals:
                break
    finally:
        engine.close()
    text = scenario.text
    for proposal in reversed(result.proposals):
        text = proposal.applied(text)
    return Outcome(text, bool(result.proposals), result.reason or "")


# scores


def chrf(candidate: str, reference: str) -> float:
    """The character F-score of Popovic (2015), from 0 to 1; 1 for two empty texts."""
    scores = []
    for order in range(1, NUM_ORDERS + 1):
        given, wanted = (
            Counter(text[at : at + order] for at in range(len(text) - order + 1)) for text in (candidate, reference)
        )
        if not (given or wanted):
            continue
        num_common = (given & wanted).total()
        precision = num_common / given.total() if given else 0.0
        recall = num_common / wanted.total() if wanted else 0.0
        weighted = BETA**2 * precision + recall
        scores.append((1 + BETA**2) * precision * recall / weighted if weighted else 0.0)
    return sum(scores) / len(scores) if scores else 1.0


def delta_chrf(before: str, candidate: str, reference: str) -> float:
    """The F-score of the changed lines, from the first change to the last."""
    return chrf(_changed(before, candidate), _changed(before, reference))


def _changed(before: str, after: str) -> str:
    old, new = before.split("\n"), after.split("\n")
    start = num_shared(old, new)
    end = num_shared(old[start:][::-1], new[start:][::-1])
    return "\n".join(new[start : len(new) - end])


def scores(outcomes: Sequence[tuple[Scenario, Outcome]]) -> dict[str, float]:
    """As the baseline of the recordings has them; deltaChrF in percent."""
    useful = [(scenario, outcome) for scenario, outcome in outcomes if scenario.expected is not None]
    quiet = [outcome for scenario, outcome in outcomes if scenario.expected is None]
    deltas = [delta_chrf(scenario.text, outcome.text, scenario.expected or "") for scenario, outcome in useful]
    delta = sum(deltas) / len(deltas)
    show = sum(outcome.is_shown for _, outcome in useful) / len(useful)
    silent = sum(not outcome.is_shown for outcome in quiet) / len(quiet)
    gate = 2 * show * silent / (show + silent) if show + silent else 0.0
    return {"score": delta * gate, "deltaChrF": 100 * delta, "showRate": show, "quietRate": silent}


def main() -> None:
    """Prints a table of scores beside their baselines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path)
    parser.add_argument("--details", action="store_true", help="a line for each scenario and model")
    options = parser.parse_args()
    folder = options.clone / FOLDER
    baseline = json.loads((folder / "baseline.json").read_text(encoding="utf-8"))
    print("| model | score | deltaChrF | shown | silent | baseline: score | deltaChrF | shown | silent |")
    print("|---|" + 8 * "---|")
    replay = Replay()
    for model in MODELS:
        outcomes = list[tuple[Scenario, Outcome]]()
        for path in sorted(folder.rglob("*.txtar")):
            recorded = path.with_suffix("") / f"{model}.ndjson"
            for number, scenario in enumerate(scenarios_of(path.read_text("utf-8")) if recorded.exists() else ()):
                outcome = outcome_of(replay, model, scenario, recordings_of(recorded.read_text("utf-8")))
                outcomes.append((scenario, outcome))
                if options.details:
                    delta = delta_chrf(scenario.text, outcome.text, scenario.expected or scenario.text)
                    print(f"{model} {scenario.name} {number} {delta:.2f} {outcome.reason or 'shown'}")
        print(f"| {model} | {_cells(scores(outcomes))} | {_cells(baseline[model])} |")


def _cells(numbers: Mapping[str, float]) -> str:
    shares = (f"{numbers[name]:.0%}" for name in ("showRate", "quietRate"))
    return " | ".join([f"{numbers['score']:.3f}", f"{numbers['deltaChrF']:.1f}", *shares])


if __name__ == "__main__":
    main()
