"""A fill as the JSON object that the documentation promises, and as one line for a person."""

from typing import Any

from dg_lsp.engine.result import FillResult


def fill_object(result: FillResult, load_ms: float) -> dict[str, Any]:
    """Keys in the documented order; times in milliseconds, `total` with the load in it."""
    timings = result.timings
    return {
        "text": result.text,
        "model": result.model,
        "candidates": [{"text": c.text, "score": round(c.score, 4)} for c in result.candidates],
        "rejected": rejected(result),
        "plan": result.plan.value,
        "canvas_length": result.canvas_length,
        "steps": result.steps,
        "tokens_per_forward": round(result.tokens_per_forward, 3),
        "prompt_tokens": result.prompt_tokens,
        "cached_tokens": result.cached_tokens,
        "timings_ms": {
            "load": round(load_ms, 3),
            "prefill": round(timings.prefill, 3),
            "denoise": round(timings.denoise, 3),
            "postprocess": round(timings.postprocess, 3),
            "total": round(load_ms + timings.total, 3),
        },
    }


def rejected(result: FillResult) -> str | None:
    """Why there is nothing to show; None when there is something."""
    if result.candidates or not result.rejections:
        return None
    return result.rejections[0].reason.value


def timing_line(result: FillResult, load_ms: float) -> str:
    """What the fill cost, for a person."""
    timings = result.timings
    return (
        f"{result.model}: {timings.total:.0f} ms"
        f" (prefill {timings.prefill:.0f}, denoise {timings.denoise:.0f}, postprocess {timings.postprocess:.0f})"
        f" after {load_ms:.0f} ms load; {_plan(result)}, {result.steps} steps,"
        f" {result.tokens_per_forward:.1f} tokens per step;"
        f" prompt {result.prompt_tokens} tokens, {result.cached_tokens} cached"
    )


def _plan(result: FillResult) -> str:
    return f"{result.plan} {result.canvas_length}" if result.canvas_length else result.plan.value
