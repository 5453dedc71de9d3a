"""Keys and values of prompts: one growing cache for each slot, and the fixed buffers that a denoising step reads.

The caches follow transformers' `DynamicCache`. `StaticCache` computes wrong logits for this model as soon as the prompt
fills the sliding window (transformers 5.23), and the sliding layers of `DynamicCache` cannot crop past the window.
"""

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer

_MAX_ROLLBACK = 1024
"""Tokens before the window that a sliding layer keeps, so that a crop does not encode the prompt again."""


class RollbackSlidingLayer(DynamicSlidingWindowLayer):
    """A sliding layer that keeps `rollback` tokens more than its window, so that it can be cropped by that many."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, sliding_window: int, rollback: int) -> None:
        super().__init__(sliding_window)
        self._max_tokens = sliding_window - 1 + rollback

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends states of shape (1, heads, N, width); returns the window before them and the states."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        num_new = key_states.shape[-2]
        # the length that `get_mask_sizes` reported for this pass
        num_visible = min(self.cumulative_length, self.sliding_window - 1) + num_new
        self.cumulative_length += num_new
        keys = torch.cat([self.keys, key_states], dim=-2)
        values = torch.cat([self.values, value_states], dim=-2)
        # a copy where tokens are dropped: a view would keep all of them in memory
        self.keys = keys[:, :, -self._max_tokens :].contiguous()
        self.values = values[:, :, -self._max_tokens :].contiguous()
        return keys[:, :, -num_visible:], values[:, :, -num_visible:]

    def can_crop(self, num_tokens: int) -> bool:
        """Whether the window before the last `num_tokens` tokens is complete."""
        window = min(self.sliding_window - 1, self.cumulative_length - num_tokens)
        return 0 <= window <= self.keys.shape[-2] - num_tokens

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last tokens; their number is negative, as in transformers."""
        num_left = self.keys.shape[-2] + tokens_to_remove
        self.cumulative_length += tokens_to_remove
        self.keys, self.values = self.keys[:, :, :num_left], self.values[:, :, :num_left]


class PrefixCache:
    """The prompt of one slot in every layer."""

    def __init__(self, text_config: Any, prompt_limit: int) -> None:
        self._config = text_config
        self._rollback = min(prompt_limit, _MAX_ROLLBACK)
        self.layers = self._empty()
        """What transformers calls `past_key_values`."""

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return int(self.layers.get_seq_length())

    def crop(self, length: int) -> int:
        """Removes tokens until `length` are left; returns how many are left: 0 where a window would be incomplete."""
        num_tokens = self.length - length
        if num_tokens > 0:
            sliding = [layer for layer in self.layers.layers if layer.is_sliding]
            if not length or not all(layer.can_crop(num_tokens) for layer in sliding):
                self.layers = self._empty()
                return 0
            for layer in self.layers.layers:
                layer.crop(-num_tokens)
        return self.length

    def _empty(self) -> DynamicCache:
        cache = DynamicCache(config=self._config)
        for number, layer in enumerate(cache.layers):
            if layer.is_sliding:
                cache.layers[number] = RollbackSlidingLayer(layer.sliding_window, self._rollback)
        return cache


class PromptBuffers:
    """The keys and values of one prompt in buffers of fixed size and address.

    The shapes of a step depend on the capacity, not on the prompt's length, so one CUDA graph serves many prompts.
    """

    def __init__(self, text_config: Any, prompt_limit: int, like: torch.Tensor) -> None:
        """`like` gives number format and device."""
        self._window = text_config.sliding_window - 1
        self._is_sliding = [kind == "sliding_attention" for kind in text_config.layer_types]
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        for number, is_sliding in enumerate(self._is_sliding):
            layer = text_config.per_layer_config[number]
            size = (1, layer.num_key_value_heads, self._window if is_sliding else prompt_limit, layer.head_dim)
            # zeros: a masked key has weight 0, and 0 times an uninitialized NaN is NaN
            self._buffers.append((like.new_zeros(size), like.new_zeros(size)))

    def load(self, prefix: PrefixCache) -> None:
        """Copies a prompt into the buffers; its first token comes first."""
        if not prefix.length:
            return
        for layer, (keys, values) in zip(prefix.layers.layers, self._buffers, strict=True):
            length = min(layer.keys.shape[-2], keys.shape[-2])
            keys[:, :, :length].copy_(layer.keys[:, :, -length:])
            values[:, :, :length].copy_(layer.values[:, :, -length:])

    def layer(self, number: int, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, shape (1, heads, N, width): N is `capacity`, or the window of a sliding layer."""
        keys, values = self._buffers[number]
        return (keys, values) if self._is_sliding[number] else (keys[:, :, :capacity], values[:, :, :capacity])

    def masks(self, canvas_numbers: torch.Tensor, length: torch.Tensor, capacity: int) -> dict[str, torch.Tensor]:
        """For each kind of layer, which keys each of T canvas tokens attends to: shape (1, 1, T, N + T).

        All of the prompt of this `length` in full layers, its last `sliding_window - 1` tokens in sliding layers, then
        all tokens of the same canvas, by `canvas_numbers` of shape (T,). Full layers have room for `capacity` tokens.
        """
        same_canvas = canvas_numbers[:, None] == canvas_numbers[None, :]

        def mask(size: int) -> torch.Tensor:
            in_prompt = torch.arange(size, device=length.device) < length
            return torch.cat([in_prompt.expand(len(same_canvas), -1), same_canvas], dim=1)[None, None]

        return {"full_attention": mask(capacity), "sliding_attention": mask(self._window)}


def prefix_bytes(text_config: Any, num_tokens: int, itemsize: int) -> int:
    """Bytes of the keys and values of a prompt."""
    sliding = min(num_tokens, text_config.sliding_window - 1 + min(num_tokens, _MAX_ROLLBACK))
    widths = [2 * layer.num_key_value_heads * layer.head_dim for layer in text_config.per_layer_config]
    lengths = [sliding if kind == "sliding_attention" else num_tokens for kind in text_config.layer_types]
    return itemsize * sum(width * length for width, length in zip(widths, lengths, strict=True))
