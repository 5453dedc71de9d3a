"""transformers' DiffusionGemma as a reference.

Sampled tokens are not compared: with random weights, a rounding in the seventh digit changes most of them.
"""

import numpy as np
import tiny_diffusiongemma as tiny
import torch
from transformers import DiffusionGemmaForBlockDiffusion, DynamicCache

EVERYTHING = {"full_attention": None, "sliding_attention": None}


def calm_model(window):
    """Random weights whose layers add little, so that rounding does not grow from step to step.

    With plain random weights, a change of 0.1 % in the conditioning of a step changes half of its predictions.
    """
    model = tiny.tiny_model(window)
    with torch.no_grad():
        model.model.decoder.embed_tokens.weight.mul_(4)
        model.model.decoder.self_conditioning.down_proj.weight.mul_(0.3)
        for name, weight in model.named_parameters():
            if "post_attention_layernorm" in name or name.endswith("post_feedforward_layernorm.weight"):
                weight.mul_(0.1)
    return model


class Reference:
    """transformers without changes."""

    def __init__(self, model):
        torch.set_num_threads(1)
        self.model = model.eval()
        self.window = model.config.text_config.sliding_window

    @classmethod
    def load(cls, checkpoint, **options):
        options = {"dtype": torch.float32, "attn_implementation": "eager", "experts_implementation": "eager", **options}
        return cls(DiffusionGemmaForBlockDiffusion.from_pretrained(checkpoint, **options))

    @torch.no_grad()
    def encoded(self, prompt):
        cache = DynamicCache(config=self.model.config.get_text_config(decoder=True))
        if len(prompt):
            self.model.model.encoder(input_ids=torch.tensor([prompt.tolist()]), past_key_values=cache)
        return cache

    @torch.no_grad()
    def logits(self, cache, canvas, conditioning=None, *, per_token=False):
        """`conditioning` are the tempered logits of the last step; `per_token` gives each position its own window."""
        num_prompt, masks = int(cache.get_seq_length()), EVERYTHING
        if per_token and num_prompt + len(canvas) > self.window:
            masks = {"full_attention": None, "sliding_attention": self._windows(num_prompt, len(canvas))}
        return self.model(
            decoder_input_ids=torch.tensor([canvas.tolist()]),
            past_key_values=cache,
            decoder_position_ids=torch.arange(num_prompt, num_prompt + len(canvas))[None],
            decoder_attention_mask=masks,
            self_conditioning_logits=None if conditioning is None else conditioning[None].to(self.model.dtype),
        ).logits[0]

    def _windows(self, num_prompt, length):
        """The mask of sliding layers, shape (1, 1, length, kept prompt tokens + length)."""
        kept = min(num_prompt, self.window - 1)
        keys = torch.arange(num_prompt - kept, num_prompt + length)
        queries = torch.arange(num_prompt, num_prompt + length)[:, None]
        is_seen = (queries - keys < self.window) | (keys >= num_prompt)
        return torch.where(is_seen, 0.0, torch.finfo(torch.float32).min)[None, None]


def clear_bounds(entropy, tolerance):
    """Entropy bounds at which a difference below `tolerance` does not change the accepted positions."""
    ascending = np.sort(entropy).astype(np.float64)
    before = np.cumsum(ascending) - ascending
    for count in range(1, len(entropy)):
        apart, margin = ascending[count] - ascending[count - 1], ascending[count - 1] / 2
        if apart > 2 * tolerance and margin > count * tolerance:
            yield (before[count] + before[count - 1]) / 2
