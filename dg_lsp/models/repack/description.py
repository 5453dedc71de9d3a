"""What a repacked DiffusionGemma says of itself: the `dg.*` keys that docs/architecture.md names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dg_lsp import gguf as v
from dg_lsp.gguf import Value

TRAINED_CANVAS = 256
SHORTER_CANVASES = (16, 32, 64, 128)
"""The forward pass takes any length; what fills are worth at shorter ones than the trained one was not measured."""
MAX_PROMPT_TOKENS = 4096
"""Far less than the model takes (262,144): what a keystroke may cost is bounded by what an editor's window is worth."""
END_TOKENS = ("<eos>", "<turn|>", "<|tool_response>")
"""As the checkpoint's generation_config.json has them: 1, 106, 50."""
_CONTROL, _USER_DEFINED = 3, 4
"""llama.cpp's kinds of tokens. Sentinels of chats that are printed (channel, tool calls) are user-defined."""
_SENTINEL_ENDS = (("<|", ">"), ("<", "|>"))


@dataclass(frozen=True, slots=True)
class Sampler:
    """How the checkpoint wants to be denoised; its own generation_config.json has these numbers."""

    entropy_bound: float = 0.1
    t_max: float = 0.8
    t_min: float = 0.4
    max_denoising_steps: int = 48
    stability_threshold: int = 1
    stop_confidence: float = 0.005
    """Nats: the mean entropy under which a stable draft is the answer."""
    end_ids: tuple[int, ...] = ()
    """Empty: those of `END_TOKENS` that the vocabulary has."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Sampler":
        """From a generation_config.json; what it does not say stays as it is."""
        known = {
            "t_max": config.get("t_max"),
            "t_min": config.get("t_min"),
            "max_denoising_steps": config.get("max_denoising_steps"),
            "stability_threshold": config.get("stability_threshold"),
            "stop_confidence": config.get("confidence_threshold"),
            "entropy_bound": (config.get("sampler_config") or {}).get("entropy_bound"),
        }
        ends = config.get("eos_token_id")
        if ends is not None:
            known["end_ids"] = tuple(ends) if isinstance(ends, list) else (ends,)
        return cls(**{key: value for key, value in known.items() if value is not None})


def describe_diffusion(
    sampler: Sampler, tokens: Sequence[str], kinds: Sequence[int], canvas_length: int, context_length: int
) -> dict[str, Value]:
    """The `dg.*` keys of the main file but those of its side file."""
    ends = sampler.end_ids or tuple(tokens.index(token) for token in END_TOKENS if token in tokens)
    banned = tuple(i for i, token in enumerate(tokens) if _is_sentinel(token, kinds[i]) and i not in ends)
    lengths = (*(length for length in SHORTER_CANVASES if length < canvas_length), canvas_length)
    return {
        "dg.version": v.uint32(1),
        "dg.noise": v.text("uniform"),
        "dg.prompt_format": v.text("instruct"),
        "dg.template": v.text("gemma4"),
        "dg.canvas_lengths": v.text(",".join(map(str, lengths))),
        "dg.max_prompt_tokens": v.uint32(max(1, min(MAX_PROMPT_TOKENS, context_length - 2 * canvas_length))),
        "dg.entropy_bound": v.float32(sampler.entropy_bound),
        "dg.t_max": v.float32(sampler.t_max),
        "dg.t_min": v.float32(sampler.t_min),
        "dg.max_denoising_steps": v.uint32(sampler.max_denoising_steps),
        "dg.stability_threshold": v.uint32(sampler.stability_threshold),
        "dg.stop_confidence": v.float32(sampler.stop_confidence),
        "dg.end_token_ids": v.text(",".join(map(str, ends))),
        "dg.banned_token_ids": v.text(",".join(map(str, banned))),
    }


def _is_sentinel(token: str, kind: int) -> bool:
    """No part of a text: control tokens, and a chat's sentinels that are printed."""
    if kind == _CONTROL:
        return True
    return kind == _USER_DEFINED and any(token.startswith(a) and token.endswith(b) for a, b in _SENTINEL_ENDS)
