"""Sizes of DiffusionGemma and of a toy model with the same structure, and the number of bytes that a step reads."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """The text model. Every `pattern`-th layer has full attention, the others have a sliding window."""

    hidden: int
    layers: int
    pattern: int
    heads: int
    sliding_kv_heads: int
    sliding_head: int
    full_kv_heads: int
    full_head: int
    feed_forward: int
    experts: int
    top_k: int
    expert_width: int
    vocab_size: int
    window: int
    context: int = 262_144
    canvas: int = 256

    def is_sliding(self, layer: int) -> bool:
        """True unless the layer has full attention, like the last one of each pattern."""
        return (layer + 1) % self.pattern != 0

    def config(self) -> dict[str, Any]:
        """The config.json of a checkpoint."""
        kinds = ["sliding_attention" if self.is_sliding(layer) else "full_attention" for layer in range(self.layers)]
        text = {
            "model_type": "diffusion_gemma_text",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden,
            "intermediate_size": self.feed_forward,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.sliding_kv_heads,
            "head_dim": self.sliding_head,
            "global_head_dim": self.full_head,
            "num_global_key_value_heads": self.full_kv_heads,
            "hidden_activation": "gelu_pytorch_tanh",
            "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-6,
            "sliding_window": self.window,
            "layer_types": kinds,
            "use_bidirectional_attention": "vision",
            "num_experts": self.experts,
            "top_k_experts": self.top_k,
            "moe_intermediate_size": self.expert_width,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "final_logit_softcapping": 30.0,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
                "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
            },
        }
        vision = {"model_type": "gemma4_vision", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
        vision |= {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "position_embedding_size": 64}
        return {
            "model_type": "diffusion_gemma",
            "canvas_length": self.canvas,
            "text_config": text,
            "vision_config": vision,
            "boi_token_id": self.vocab_size - 3,
            "eoi_token_id": self.vocab_size - 2,
            "image_token_id": self.vocab_size - 1,
        }

    @property
    def expert_weights(self) -> int:
        """Weights of one expert."""
        return 3 * self.hidden * self.expert_width

    @property
    def shared_weights(self) -> int:
        """Weights that every step reads: all layers without their experts, and self-conditioning."""
        attention = sum(self._attention(layer) for layer in range(self.layers))
        routers = self.layers * self.hidden * self.experts
        return attention + routers + 3 * (self.layers + 1) * self.hidden * self.feed_forward

    def _attention(self, layer: int) -> int:
        if self.is_sliding(layer):
            return self.hidden * self.sliding_head * (2 * self.heads + 2 * self.sliding_kv_heads)
        return self.hidden * self.full_head * (2 * self.heads + self.full_kv_heads)

    def experts_read(self, canvas: int) -> float:
        """Expected number of different experts of a layer for a canvas, with uniform routing."""
        return self.experts * (1 - (1 - self.top_k / self.experts) ** canvas)

    def prompt_bytes(self, length: int) -> int:
        """Bytes of the keys and values that a step reads, in 16 bits."""
        full = sum(not self.is_sliding(layer) for layer in range(self.layers))
        windows = (self.layers - full) * 2 * self.sliding_kv_heads * self.sliding_head * min(length, self.window - 1)
        return 2 * (windows + full * 2 * self.full_kv_heads * self.full_head * length)

    def step_bytes(self, canvas: int, prompt: int, *, bits: float, embedding_bits: float = 16) -> float:
        """Bytes that a step reads: weights once, embedding twice (head and self-conditioning), logits four times."""
        weights = self.shared_weights + self.layers * self.experts_read(canvas) * self.expert_weights
        embedding = 2 * self.vocab_size * self.hidden
        logits = 4 * 4 * canvas * self.vocab_size
        return weights * bits / 8 + embedding * embedding_bits / 8 + self.prompt_bytes(prompt) + logits


REAL = Shape(
    hidden=2816,
    layers=30,
    pattern=6,
    heads=16,
    sliding_kv_heads=8,
    sliding_head=256,
    full_kv_heads=2,
    full_head=512,
    feed_forward=2112,
    experts=128,
    top_k=8,
    expert_width=704,
    vocab_size=262_144,
    window=1024,
)
"""google/diffusiongemma-26B-A4B-it: 25.25 B weights in the text model, 3.8 B of them active in a step."""
TOY = Shape(
    hidden=64,
    layers=6,
    pattern=3,
    heads=4,
    sliding_kv_heads=2,
    sliding_head=16,
    full_kv_heads=1,
    full_head=32,
    feed_forward=96,
    experts=8,
    top_k=2,
    expert_width=64,
    vocab_size=512,
    window=64,
    context=512,
    canvas=32,
)

BANDWIDTHS = {"H200": 4.8e12, "H100": 3.35e12, "A100": 2.04e12, "RTX 5090": 1.79e12, "RTX 4090": 1.01e12}
"""Bytes per second according to the data sheets, by a part of the device name."""


def bandwidth_of(name: str) -> float | None:
    """Bytes per second of a device; None for an unlisted one."""
    return next((value for part, value in BANDWIDTHS.items() if part in name), None)
