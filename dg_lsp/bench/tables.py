"""Step measurements as Markdown, for a terminal and for the log."""

from collections.abc import Iterator, Mapping, Sequence

from dg_lsp.bench.recompute import Comparison
from dg_lsp.bench.steps import BATCH_SIZES, NUM_EXTENDED, BatchTimes, Overhead, StepTimes
from dg_lsp.bench.steps_shares import Shares


def step_table(times: Mapping[int, StepTimes]) -> Iterator[str]:
    """One row per prompt length, milliseconds."""
    first = next(iter(times.values()))
    columns = ["prompt", "prefill", f"{NUM_EXTENDED} more tokens"]
    columns += [f"step at {length}" for length in first.steps] + [f"causal pass of {size}" for size in first.causal]
    yield from _heading(columns)
    for num_prompt_tokens, row in times.items():
        cells = [row.prefill, row.extend, *row.steps.values(), *row.causal.values()]
        yield f"| {num_prompt_tokens} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |"


def ratio_table(times: Mapping[int, StepTimes]) -> Iterator[str]:
    """One row per prompt length: a step over a canvas in steps of one token."""
    yield from _heading(["prompt", *(f"canvas {length}" for length in next(iter(times.values())).steps)])
    for num_prompt_tokens, row in times.items():
        cells = [f"{ratio:.1f}" for ratio in row.one_token_steps.values()]
        yield f"| {num_prompt_tokens} | {' | '.join(cells)} |"


def batch_table(batches: Sequence[BatchTimes]) -> Iterator[str]:
    """One row per canvas length: a pass over several canvases, and what each of them then costs of one alone."""
    yield from _heading(["canvas", *(str(count) for count in BATCH_SIZES)])
    for row in batches:
        cells = [
            f"{row.steps[count]:.2f} ({row.steps[count] / row.steps[1] / count:.2f} each)"
            if count in row.steps
            else "-"
            for count in BATCH_SIZES
        ]
        yield f"| {row.canvas_length} | {' | '.join(cells)} |"


def share_table(shares: Shares) -> Iterator[str]:
    """One row per part of a step."""
    yield from _heading(["part of a step", "ms", "share"])
    for name, ms in shares.parts().items():
        yield f"| {name.replace('_', '-')} | {ms:.3f} | {ms / shares.total if shares.total else 0.0:.1%} |"


def _heading(columns: Sequence[str]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"


def overhead_line(overhead: Overhead) -> str:
    """The engine's share of a step."""
    return (
        f"engine over {overhead.num_steps} steps of real fills: {overhead.engine:.3f} ms per step beside "
        f"{overhead.decode:.3f} ms in the backend, {overhead.share:.1%}"
    )


def comparison_table(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """One row per canvas length, milliseconds per step."""
    yield "| canvas | prompt cached | prompt recomputed | times faster |"
    yield "|---|---|---|---|"
    for one in comparisons:
        yield f"| {one.canvas_length} | {one.cached:.2f} | {one.recomputed:.2f} | {one.ratio:.1f} |"
