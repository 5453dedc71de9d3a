"""What DiffusionGemma's tensors are called: in Hugging Face's checkpoints, in both open pull requests' GGUF files, and
in the repacked files (llama.cpp's `gemma4`, and the side file)."""

import re

ARCHITECTURE = "gemma4"
"""Of the repacked file: DiffusionGemma's decoder is Gemma 4's."""
DIFFUSION_ARCHITECTURE = "diffusion-gemma"
"""Of the files made for llama.cpp's pull requests 24423 and 24427."""
SIDE_ARCHITECTURE = "dg-selfcond"
SIDE_SUFFIX = ".selfcond.gguf"

PRE_NORM, GATE, UP, DOWN = (f"self_cond.{part}" for part in ("pre_norm", "gate", "up", "down"))
SELF_CONDITIONING = (PRE_NORM, GATE, UP, DOWN)
"""The side file's tensors, width last: (H,), (M, H), (M, H), (H, M)."""

GGUF_SELF_CONDITIONING = {
    "self_cond_pre_norm": PRE_NORM,  # 24423 and the files that are spread
    "self_cond_norm": PRE_NORM,  # 24427
    "self_cond_gate": GATE,
    "self_cond_up": UP,
    "self_cond_down": DOWN,
}
DECODER_SCALE = "layer_output_scale"
ENCODER_SCALE = "enc_layer_output_scale"
"""The encoder has the decoder's weights and its own copy of this one number per layer (24423 only)."""

DECODER = "model.decoder."
ENCODER = "model.encoder.language_model."
LAYER_SCALAR = "layer_scalar"

_TOP = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "self_conditioning.pre_norm.weight": PRE_NORM,
    "self_conditioning.gate_proj.weight": GATE,
    "self_conditioning.up_proj.weight": UP,
    "self_conditioning.down_proj.weight": DOWN,
}
_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    LAYER_SCALAR: f"{DECODER_SCALE}.weight",
}
_NUMBERED = re.compile(r"layers\.(\d+)\.(.+)")
LAYER_TENSORS = tuple(_LAYER.values())
"""What each layer has, `blk.N.` left out; layers that attend to everything have no `attn_v.weight`."""


def repacked_name(name: str) -> str | None:
    """The name of a checkpoint's decoder tensor in the repacked files; None for one that is not known."""
    if not name.startswith(DECODER):
        return None
    rest = name.removeprefix(DECODER)
    if match := _NUMBERED.fullmatch(rest):
        layer = _LAYER.get(match[2])
        return f"blk.{int(match[1])}.{layer}" if layer else None
    return _TOP.get(rest)
