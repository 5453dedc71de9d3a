"""How much sooner the first line of a fill stands under uniform noise, and how often it changes afterwards.

    python benchmarks/early_lines.py [--files FOLDER] [--number 100] [--canvas 32] [--steps 48] [--temperature 0.8 0.4]
    python benchmarks/early_lines.py --model MODEL.gguf --line 8

Without a model, the bundled mask model denoises uniform noise: see `UniformNoise`. It fills from the first character of
random lines of Python files on. With a DiffusionGemma, the prompts are random tokens, and a line is its first tokens.

Each canvas is denoised to its end by the sampler. The rules for settled positions are computed afterwards from the
recorded steps. Prints one JSON object with means, then a table with one row for each rule.
"""

import argparse
import json
import random
import statistics
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
from dg_lsp.canvas.layout import Canvas, Flags, TokenIds, among, token_ids
from dg_lsp.canvas.prompt_format import layout_of, prompt_of
from dg_lsp.canvas.spec import MaskSampling, ModelSpec, UniformSampling
from dg_lsp.cli.loading import load_model, open_denoiser
from dg_lsp.context.document import Snapshot
from dg_lsp.diffusion.denoiser import Floats, Lanes, Passes, Prediction
from dg_lsp.diffusion.loop import denoise
from dg_lsp.settings import ModelSettings, Settings

NUM_GROUPS = 3
"""Canvases of a pass in which kept positions are masked in turn."""
STABILITIES, BOUNDS = (1, 2, 3), (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


class UniformNoise:
    """A mask model that denoises uniform noise as the ideal denoiser would, one canvas at a time. See `Passes`.

    Random tokens are masked; the wrapper recognizes them, since it drew every kept token. A kept position is predicted
    from canvases in which it is masked. Then Bayes' rule adds what the token itself tells: with a fraction `a` of noise
    it is right with odds of (1 - a) * V / a + 1 against any other token.
    """

    def __init__(self, inner: LlamaDenoiser, sampling: UniformSampling) -> None:
        assert isinstance(inner.spec.sampling, MaskSampling)
        self._inner, self._mask_id = inner, inner.spec.sampling.mask_id
        self.spec = replace(inner.spec, sampling=sampling)
        self._sampled: TokenIds | None = None

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """See `Passes.prefill`."""
        self._sampled = None
        return self._inner.prefill(slot, prompt_ids)

    def predict(
        self, slot: int, canvases: Sequence[TokenIds], temperature: float, rng: np.random.Generator, lanes: Lanes = ()
    ) -> list[Prediction]:
        """See `Passes.predict`."""
        del lanes
        (canvas,) = canvases
        is_noise = np.ones(len(canvas), np.bool_) if self._sampled is None else canvas != self._sampled
        numbers = np.where(is_noise, -1, np.arange(len(canvas)) % NUM_GROUPS)
        opened: list[tuple[TokenIds, Flags]] = []
        for number in range(-1, NUM_GROUPS):
            flags = numbers == number
            if flags.any():
                hidden = flags | is_noise
                opened.append((np.where(hidden, np.int32(self._mask_id), canvas), flags))
        order = np.concatenate([np.flatnonzero(flags) for _, flags in opened])
        share = float(np.clip(is_noise.mean(), 0.05, 1.0))
        bonus = np.float32(np.log1p((1 - share) * self.spec.vocab_size / share))

        def reduce(logits: Floats) -> Prediction:
            logits[np.arange(len(order)), canvas[order]] += bonus
            return self._inner._reducer.reduce(logits, temperature, rng)

        found = self._inner._predict_open(slot, opened, reduce)
        back = np.argsort(order)
        names = ("argmax_ids", "sampled_ids", "confidence", "entropy", "sampled_confidence")
        prediction = Prediction(**{name: getattr(found, name)[back] for name in names})
        self._sampled = prediction.sampled_ids
        return [prediction]

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """See `Passes.extend`."""
        return self._inner.extend(slot, ids)


@dataclass(slots=True)
class Recording:
    """Records the entropies of the passes. See `Passes`."""

    inner: Passes
    entropies: list[Floats]

    @property
    def spec(self) -> ModelSpec:
        """See `Passes.spec`."""
        return self.inner.spec

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """See `Passes.prefill`."""
        return self.inner.prefill(slot, prompt_ids)

    def predict(
        self, slot: int, canvases: Sequence[TokenIds], temperature: float, rng: np.random.Generator, lanes: Lanes = ()
    ) -> list[Prediction]:
        """See `Passes.predict`."""
        found = self.inner.predict(slot, canvases, temperature, rng, lanes)
        self.entropies.append(found[0].entropy)
        return found

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """See `Passes.extend`."""
        return self.inner.extend(slot, ids)


@dataclass(frozen=True, slots=True)
class Course:
    """All steps of a canvas; a line ends with `is_end`."""

    drafts: list[TokenIds]
    entropies: list[Floats]
    stop: str

    def settled(self, stability: int, bound: float) -> Iterator[TokenIds]:
        """The leading settled run after each step but the last, where everything stands."""
        stable, before = np.full(len(self.drafts[0]), -1, np.int32), self.drafts[0]
        for draft, entropy in zip(self.drafts[:-1], self.entropies, strict=False):
            stable = np.where(draft == before, stable + 1, 0).astype(np.int32)
            before, flags = draft, (stable >= stability) & (entropy < bound)
            yield draft[: len(flags) if flags.all() else int(flags.argmin())]

    def first_line(self, stability: int, bound: float, is_end: "LineEnd") -> tuple[int, bool] | None:
        """The step at which the first line stands, and whether the last draft has the same one; None if none does."""
        for number, ids in enumerate(self.settled(stability, bound), start=1):
            if end := is_end(ids):
                return number, bool(np.array_equal(ids[:end], self.drafts[-1][:end]))
        return None

    def changed(self, stability: int, bound: float) -> tuple[int, int]:
        """Tokens in the leading settled run of a step that the last draft has not, and all in such runs."""
        runs = list(self.settled(stability, bound))
        return sum(int((ids != self.drafts[-1][: len(ids)]).sum()) for ids in runs), sum(map(len, runs))


class LineEnd:
    """The number of tokens of the first line, 0 if it is not complete."""

    def __init__(self, spec: ModelSpec, num_tokens: int, line_ends: TokenIds) -> None:
        self._num_tokens, self._ends = num_tokens, token_ids([*spec.end_ids, *line_ends])

    def __call__(self, ids: TokenIds) -> int:
        """Tokens of the first line of these ids, its end included."""
        if self._num_tokens:
            return self._num_tokens if len(ids) >= self._num_tokens else 0
        found = np.flatnonzero(among(ids, self._ends))
        return int(found[0]) + 1 if len(found) else 0


def course_of(denoiser: Passes, canvas: Canvas, rng: np.random.Generator) -> Course:
    """Denoises a canvas to its end."""
    assert denoiser.spec.sampling is not None
    recording = Recording(denoiser, [])
    recording.prefill(0, canvas.prompt_ids)
    steps = list(denoise(recording, 0, canvas, denoiser.spec.sampling, rng))
    return Course([step.draft_ids for step in steps], recording.entropies, str(steps[-1].stop))


def prompts_of_files(denoiser: LlamaDenoiser, spec: ModelSpec, folder: Path, number: int) -> Iterator[TokenIds]:
    """Prompts at the first character of random lines of code."""
    rng = random.Random(0)
    files = sorted(path for path in folder.glob("*.py") if path.stat().st_size < 100_000)
    for path in rng.choices(files, k=number):
        text = path.read_text(encoding="utf-8", errors="replace")
        lines = text.split("\n")
        rows = [row for row, line in enumerate(lines) if line.strip() and line.strip()[0] not in "#\"'"]
        row = rng.choice(rows[len(rows) // 4 :] or rows)
        offset = sum(len(line) + 1 for line in lines[:row]) + len(lines[row]) - len(lines[row].lstrip())
        cut = offset + len(lines[row].lstrip())
        snapshot = Snapshot(path.as_uri(), 1, text[:offset] + text[cut:])
        prompt = prompt_of(snapshot, offset, spec.max_prompt_tokens)
        yield layout_of(prompt, denoiser.tokenizer, spec, spec.max_prompt_tokens).prompt_ids


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=Path, default=Path(sysconfig.get_path("stdlib")))
    parser.add_argument("--model", help="a DiffusionGemma; default: the bundled mask model")
    parser.add_argument("--line", type=int, default=0, help="tokens of a line of a model without text")
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--canvas", type=int, default=32)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--temperature", type=float, nargs=2, default=(0.8, 0.4), help="at the first and last step")
    options = parser.parse_args(arguments)
    settings = Settings(model=ModelSettings(name=options.model or "dg-mini", threads=1, gpu_layers=0))
    first, last = options.temperature
    sampling = UniformSampling(t_max=first, t_min=last, max_denoising_steps=options.steps)
    inner, rng = open_denoiser(load_model(settings), settings), np.random.default_rng(0)
    assert isinstance(inner, LlamaDenoiser)
    with closing(inner):
        spec, denoiser = inner.spec, inner if options.model else UniformNoise(inner, sampling)
        prompts: Iterator[TokenIds]
        if options.model:
            inner.spec = replace(spec, sampling=sampling)
            prompts = (rng.integers(0, spec.vocab_size, 24).astype(np.int32) for _ in range(options.number))
        else:
            prompts = prompts_of_files(inner, spec, options.files, options.number)
        line_ends = [i for i in range(spec.vocab_size) if b"\n" in inner.tokenizer.decode(token_ids([i]))]
        is_end = LineEnd(spec, options.line, token_ids(line_ends))
        noise = partial(rng.integers, 0, spec.vocab_size, options.canvas, dtype=np.int32)
        frozen = np.zeros(options.canvas, np.bool_)
        courses = [course_of(denoiser, Canvas(ids, noise(), frozen), rng) for ids in prompts]
    facts = {
        "canvases": len(courses),
        "with a line": sum(is_end(course.drafts[-1]) > 0 for course in courses),
        "mean steps": round(statistics.mean(len(course.drafts) for course in courses), 1),
        "stopped stable": sum(course.stop == "stable" for course in courses),
    }
    print(json.dumps({**vars(options), **facts}, default=str))
    print("| stable steps | nats | lines | steps sooner | steps of these canvases | lines changed | tokens changed |")
    print("|---|---|---|---|---|---|---|")
    for stability, bound in product(STABILITIES, BOUNDS):
        _print_row(courses, stability, bound, is_end)


def _print_row(courses: Sequence[Course], stability: int, bound: float, is_end: LineEnd) -> None:
    found = [(course, course.first_line(stability, bound, is_end)) for course in courses]
    lines = [(len(course.drafts), *line) for course, line in found if line is not None]
    pairs = [course.changed(stability, bound) for course in courses]
    changed, total = sum(one for one, _ in pairs), sum(one for _, one in pairs)
    sooner = statistics.mean(last - at for last, at, _ in lines) if lines else 0.0
    length = statistics.mean(last for last, *_ in lines) if lines else 0.0
    reversed_lines = sum(not same for *_, same in lines)
    shares = f"{100 * reversed_lines / max(1, len(lines)):.1f} % | {100 * changed / max(1, total):.2f} %"
    print(f"| {stability} | {bound:g} | {len(lines)} of {len(courses)} | {sooner:.1f} | {length:.1f} | {shares} |")


if __name__ == "__main__":
    main()
