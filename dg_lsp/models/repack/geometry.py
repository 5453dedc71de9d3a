"""A checkpoint's config.json as the `gemma4.*` keys of a GGUF file."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dg_lsp import gguf as v
from dg_lsp.gguf import Value
from dg_lsp.models.repack.names import ARCHITECTURE

MODEL_TYPE = "diffusion_gemma"
_SLIDING, _FULL = "sliding_attention", "full_attention"
_SOFTCAP = 30.0
"""Of the logits, where the config says nothing: it is no part of what transformers saves."""
_UNROTATED = 1e30
"""A divisor of frequencies that leaves a dimension where it is."""


class Geometry:
    """The text model's sizes.

    Raises:
        KeyError, TypeError, ValueError: a key is missing, odd, or asks for what llama.cpp's graph does not compute.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        text = config["text_config"]
        self._text: Mapping[str, Any] = text
        self.canvas_length = int(config["canvas_length"])
        self.context_length = int(text["max_position_embeddings"])
        self.vocab_size = int(text["vocab_size"])
        self.sliding = tuple(kind == _SLIDING for kind in text["layer_types"])
        if len(self.sliding) != text["num_hidden_layers"] or not set(text["layer_types"]) <= {_SLIDING, _FULL}:
            raise ValueError("layer_types")
        if not text.get("tie_word_embeddings", True):
            raise ValueError("tie_word_embeddings")
        if text.get("use_bidirectional_attention") not in (None, "vision"):
            raise ValueError("use_bidirectional_attention")
        if text.get("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
            raise ValueError("hidden_activation")
        if not text.get("num_experts") or text.get("attention_bias"):
            raise ValueError("num_experts" if not text.get("num_experts") else "attention_bias")
        self._rope = text["rope_parameters"]
        if self._rope[_FULL]["rope_type"] != "proportional" or self._rope[_SLIDING]["rope_type"] != "default":
            raise ValueError("rope_parameters")

    def _of_full_layers(self, key: str, old_key: str) -> int:
        """A size that layers attending to everything have for themselves; older configs name it apart."""
        if self._text.get(old_key) is not None:
            return int(self._text[old_key])
        layers = self._text.get("per_layer_config") or {}
        found = {int(of.get(key, self._text[key])) for i, of in layers.items() if not self.sliding[int(i)]}
        if len(found) > 1:
            raise ValueError("per_layer_config")
        return found.pop() if found else int(self._text[key])

    @property
    def full_head_width(self) -> int:
        """Channels of a head in layers that attend to everything."""
        return self._of_full_layers("head_dim", "global_head_dim")

    def values(self) -> dict[str, Value]:
        """The `gemma4.*` keys."""
        text, full = self._text, self.full_head_width
        full_kv = self._of_full_layers("num_key_value_heads", "num_global_key_value_heads")
        swa, sliding_kv = int(text["head_dim"]), int(text["num_key_value_heads"])
        softcap = text.get("final_logit_softcapping", _SOFTCAP)
        found = {
            "block_count": v.uint32(len(self.sliding)),
            "context_length": v.uint32(self.context_length),
            "embedding_length": v.uint32(text["hidden_size"]),
            "feed_forward_length": v.uint32(text["intermediate_size"]),
            "attention.head_count": v.uint32(text["num_attention_heads"]),
            "attention.head_count_kv": v.int32s([sliding_kv if s else full_kv for s in self.sliding]),
            "rope.freq_base": v.float32(self._rope[_FULL]["rope_theta"]),
            "rope.freq_base_swa": v.float32(self._rope[_SLIDING]["rope_theta"]),
            "attention.layer_norm_rms_epsilon": v.float32(text["rms_norm_eps"]),
            "expert_count": v.uint32(text["num_experts"]),
            "expert_used_count": v.uint32(text["top_k_experts"]),
            "attention.key_length": v.uint32(full),
            "attention.value_length": v.uint32(full),
            "attention.sliding_window": v.uint32(text["sliding_window"]),
            "attention.shared_kv_layers": v.uint32(0),
            "embedding_length_per_layer_input": v.uint32(0),
            "attention.sliding_window_pattern": v.flags(self.sliding),
            "attention.key_length_swa": v.uint32(swa),
            "attention.value_length_swa": v.uint32(swa),
            "expert_feed_forward_length": v.uint32(text["moe_intermediate_size"]),
            "rope.dimension_count": v.uint32(full),
            "rope.dimension_count_swa": v.uint32(swa),
            "vocab_size": v.uint32(self.vocab_size),
        }
        if softcap:
            found["final_logit_softcapping"] = v.float32(softcap)
        return {f"{ARCHITECTURE}.{key}": value for key, value in found.items()}

    def rope_divisors(self) -> npt.NDArray[np.float32]:
        """`rope_freqs.weight`: layers that attend to everything rotate only their first channels."""
        half = self.full_head_width // 2
        rotated = int(self.full_head_width * self._rope[_FULL]["partial_rotary_factor"] / 2)
        return np.where(np.arange(half) < rotated, 1.0, _UNROTATED).astype(np.float32)
