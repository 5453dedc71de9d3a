"""transformers' DiffusionGemma as a reference.

Sampled tokens are not compared: with random weights, a rounding in the seventh digit changes most of them.
"""

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
    def logits(self, cache, canvas, conditioning=None):
        """`conditioning` are the tempered logits of the last step."""
        num_prompt = int(cache.get_seq_length())
        return self.model(
            decoder_input_ids=torch.tensor([canvas.tolist()]),
            past_key_values=cache,
            decoder_position_ids=torch.arange(num_prompt, num_prompt + len(canvas))[None],
            decoder_attention_mask=EVERYTHING,
            self_conditioning_logits=None if conditioning is None else conditioning[None].to(self.model.dtype),
        ).logits[0]
