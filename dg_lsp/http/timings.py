"""What an answer cost, as llama.cpp names it, and what only diffusion has to tell."""

from typing import Any

from dg_lsp.engine.result import FillResult


def timings(result: FillResult) -> dict[str, float]:
    """llama.cpp's `timings`: tokens and milliseconds of prompt and answer. `cache_n` were cached, `prompt_n` not."""
    num_prompt = result.prompt_tokens - result.cached_tokens
    return {
        "cache_n": result.cached_tokens,
        **_stage("prompt", num_prompt, result.timings.prefill),
        **_stage("predicted", result.output_tokens, result.timings.denoise),
    }


def diffusion(result: FillResult) -> dict[str, Any]:
    """How the answer was denoised; a canvas of 0 tokens says that it was decoded without one."""
    ms, length = result.timings.denoise, result.canvas_length
    return {
        "decoder": result.decoder.value,
        "canvas_length": length,
        "canvas_tokens": result.num_blocks * length,
        "blocks": result.num_blocks,
        "steps": result.steps,
        "steps_per_second": _rounded(1e3 * result.steps / ms) if ms else 0.0,
        "ms_per_step": _rounded(ms / result.steps) if result.steps else 0.0,
        "tokens_per_forward": _rounded(result.tokens_per_forward),
        "reused_prompt_tokens": result.cached_tokens,
    }


def usage(result: FillResult) -> dict[str, Any]:
    """OpenAI's `usage`, in tokens."""
    num_answer = result.output_tokens
    return {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": num_answer,
        "total_tokens": result.prompt_tokens + num_answer,
        "prompt_tokens_details": {"cached_tokens": result.cached_tokens},
    }


def _stage(name: str, num: int, ms: float) -> dict[str, float]:
    return {
        f"{name}_n": num,
        f"{name}_ms": _rounded(ms),
        f"{name}_per_token_ms": _rounded(ms / num) if num else 0.0,
        f"{name}_per_second": _rounded(1e3 * num / ms) if ms else 0.0,
    }


def _rounded(value: float) -> float:
    return round(value, 3)
