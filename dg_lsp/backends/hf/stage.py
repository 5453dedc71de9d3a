"""What a step sees of its prompt: keys and values in buffers that stay where they are, and masks over them.

Buffers and masks of fixed shape make one compiled or captured step serve every prompt: nothing in it depends on how
long the prompt is but a number on the device.
"""

from typing import Any

import torch

from dg_lsp.backends.hf.prefix import PrefixCache


class Stage:
    """One prompt for the decoder's layers; a canvas of up to `canvas_tokens` writes its own keys before it.

    Every buffer is laid out as `[canvas, right-aligned | prompt, left-aligned | unused]`: a canvas of any length and a
    prompt of any capacity are one slice of it.
    """

    def __init__(self, text_config: Any, *, prompt_limit: int, canvas_tokens: int, like: torch.Tensor) -> None:
        """`like` says type and device."""
        self._canvas_tokens = canvas_tokens
        self._window = text_config.sliding_window - 1
        self._is_sliding = [kind == "sliding_attention" for kind in text_config.layer_types]
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        for number, is_sliding in enumerate(self._is_sliding):
            layer = text_config.per_layer_config[number]
            room = canvas_tokens + (self._window if is_sliding else prompt_limit)
            # zeros, not whatever lies there: a masked key's weight is 0, and 0 times not-a-number is none
            size = (1, layer.num_key_value_heads, room, layer.head_dim)
            self._keys.append(like.new_zeros(size))
            self._values.append(like.new_zeros(size))

    def load(self, prefix: PrefixCache) -> None:
        """Copies a prompt in; the one before it is overwritten."""
        if not prefix.length:
            return
        for number, layer in enumerate(prefix.layers.layers):
            stop = self._canvas_tokens + layer.keys.shape[-2]
            self._keys[number][:, :, self._canvas_tokens : stop].copy_(layer.keys)
            self._values[number][:, :, self._canvas_tokens : stop].copy_(layer.values)

    def append(
        self, number: int, capacity: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer's canvas keys and values of shape (1, heads, T, width), and the prompt's after them."""
        room = self._window if self._is_sliding[number] else capacity
        start, stop = self._canvas_tokens - keys.shape[-2], self._canvas_tokens + room
        seen_keys, seen_values = self._keys[number][:, :, start:stop], self._values[number][:, :, start:stop]
        seen_keys[:, :, : keys.shape[-2]].copy_(keys)
        seen_values[:, :, : keys.shape[-2]].copy_(values)
        return seen_keys, seen_values

    def masks(self, canvas_numbers: torch.Tensor, length: torch.Tensor, capacity: int) -> dict[str, torch.Tensor]:
        """What each of T canvas tokens may look at, by kind of layer: shape (1, 1, T, T + room), true where it may.

        All of its own canvas, both ways, nothing of another; the whole prompt in full layers, and in sliding layers
        the same last tokens of it for every position of the canvas.

        Args:
            canvas_numbers: shape (T,); equal for tokens of one canvas.
            length: tokens of the prompt, on the device.
            capacity: prompt tokens that full layers have room for.
        """
        own = canvas_numbers[:, None] == canvas_numbers[None, :]
        full = torch.arange(capacity, device=own.device) < length
        sliding = torch.arange(self._window, device=own.device) < length
        return {
            kind: torch.cat([own, visible.expand(len(own), -1)], dim=1)[None, None]
            for kind, visible in (("full_attention", full), ("sliding_attention", sliding))
        }
