"""Step measurements as Markdown, for a terminal and for the log."""

from collections.abc import Iterator, Mapping, Sequence

from dg_lsp.bench.recompute import Comparison
from dg_lsp.bench.steps import NUM_EXTENDED, Overhead, StepTimes


def step_table(times: Mapping[int, StepTimes]) -> Iterator[str]:
    """One row per prompt length, milliseconds."""
    lengths = list(next(iter(times.values())).steps)
    yield f"| prompt | prefill | {NUM_EXTENDED} more tokens | " + " | ".join(f"step at {n}" for n in lengths) + " |"
    yield "|---" * (3 + len(lengths)) + "|"
    for num_prompt_tokens, row in times.items():
        cells = [row.prefill, row.extend, *row.steps.values()]
        yield f"| {num_prompt_tokens} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |"


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
