"""Hugging Face checkpoints: numbers, names, tokenizer, and what is refused."""

import json

import numpy as np
import pytest
import tiny_diffusiongemma
import torch
from safetensors.torch import load_file, save_file

from dg_lsp.errors import InputFileError, ModelBrokenError, ModelUnsupportedError
from dg_lsp.gguf import BF16, BLOCK_BYTES, F16, F32, read_header
from dg_lsp.models import convert
from dg_lsp.models.convert import convert_checkpoint, write_model
from dg_lsp.models.metadata import describe_uniform

UP = "model.decoder.layers.1.mlp.up_proj.weight"
EXPERTS = "model.decoder.layers.1.experts.gate_up_proj"
TORCH = {F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16}


def edit(folder, name, change):
    """Rewrites a JSON file of a checkpoint."""
    path = folder / name
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def save_single(folder, weights):
    """The checkpoint's weights in one file instead."""
    for path in folder.glob("model*.safetensors*"):
        path.unlink()
    save_file(weights, folder / "model.safetensors")


def all_weights(folder):
    return {name: w for path in sorted(folder.glob("*.safetensors")) for name, w in load_file(path).items()}


def stored(parts, name):
    tensor = next(tensor for tensor in (*parts.main, *parts.side) if tensor.name == name)
    return tensor.kind, b"".join(map(bytes, tensor.blocks()))


@pytest.mark.parametrize("kind", [F32, F16, BF16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("source", [F32, F16, BF16], ids=lambda kind: kind.name)
def test_numbers_are_rounded_as_torch_rounds_them(checkpoint, source, kind, monkeypatch):
    monkeypatch.setattr(convert, "BLOCK_BYTES", 4000)  # several blocks, the last one shorter
    weights = {name: w.to(TORCH[source]) for name, w in all_weights(checkpoint).items()}
    save_single(checkpoint, weights)
    parts = convert_checkpoint(checkpoint, kind)
    for ours, theirs in (("blk.1.ffn_up.weight", UP), ("blk.1.ffn_gate_up_exps.weight", EXPERTS)):
        expected = weights[theirs].float().to(TORCH[kind]).contiguous().view(torch.uint8).numpy().tobytes()
        assert stored(parts, ours) == (kind, expected)
    norm = weights["model.decoder.norm.weight"].float().numpy().tobytes()
    assert stored(parts, "output_norm.weight") == (F32, norm)
    assert stored(parts, "blk.0.ffn_gate_inp.weight")[0] is F32
    assert stored(convert_checkpoint(checkpoint), "self_cond.up")[0] is source


def test_several_blocks_are_the_product_s_own_size():
    assert BLOCK_BYTES >= 1 << 20


def test_one_file_is_what_shards_are(checkpoint, tiny_repacked, tmp_path):
    assert len(list(checkpoint.glob("*.safetensors"))) > 1
    save_single(checkpoint, all_weights(checkpoint))
    write_model(convert_checkpoint(checkpoint), tmp_path / "tiny.gguf")
    assert read_header(tmp_path / "tiny.gguf").tensors.keys() == read_header(tiny_repacked).tensors.keys()
    one, other = (read_header(path) for path in (tmp_path / "tiny.gguf", tiny_repacked))
    assert all(np.array_equal(one.rows(name), other.rows(name)) for name in one.tensors)


def test_the_file_describes_itself(tiny_repacked):
    header = read_header(tiny_repacked)
    metadata = {key: str(value.read()) for key, value in header.values.items() if not key.startswith("tokenizer.ggml.")}
    spec = describe_uniform(metadata, tiny_diffusiongemma.VOCAB_SIZE, "tiny")
    assert spec.template == "gemma4"
    assert spec.canvas_lengths == (16, 32)
    assert spec.max_prompt_tokens == 4096 - 2 * 32
    assert spec.end_ids == (1, 106, 50)
    assert {0, 2, 3, 4, 98, 100, 101, 105, 509, 510, 511} <= {*spec.banned_ids}
    assert not {*spec.banned_ids} & {*spec.end_ids, tiny_diffusiongemma.NEWLINE_ID}
    assert spec.sampling is not None
    assert (spec.sampling.max_denoising_steps, spec.sampling.stability_threshold) == (48, 1)
    assert spec.sampling.t_min == pytest.approx(0.4)


def test_the_checkpoint_s_own_sampler_is_taken_over(checkpoint):
    sampler = {"t_max": 0.9, "t_min": 0.3, "sampler_config": {"entropy_bound": 0.25}, "confidence_threshold": 0.01}
    sampler |= {"max_denoising_steps": 12, "stability_threshold": 2, "eos_token_id": 106}
    edit(checkpoint, "generation_config.json", lambda config: config.update(sampler))
    values = {key: value.read() for key, value in convert_checkpoint(checkpoint).values.items()}
    assert [values[f"dg.{key}"] for key in ("t_max", "t_min", "entropy_bound", "stop_confidence")] == pytest.approx(
        [0.9, 0.3, 0.25, 0.01]
    )
    assert (values["dg.max_denoising_steps"], values["dg.stability_threshold"]) == (12, 2)
    assert values["dg.end_token_ids"] == "106"
    assert "1" in values["dg.banned_token_ids"].split(",")
    (checkpoint / "generation_config.json").unlink()
    assert convert_checkpoint(checkpoint).values["dg.end_token_ids"].read() == "1,106,50"


def test_older_configs_name_the_full_layers_sizes_apart(checkpoint, tiny_repacked):
    def older(config):
        text = config["text_config"]
        del text["per_layer_config"]
        text |= {"global_head_dim": 32, "num_global_key_value_heads": 1}

    edit(checkpoint, "config.json", older)
    values, expected = convert_checkpoint(checkpoint).values, read_header(tiny_repacked).values
    for key in ("attention.head_count_kv", "attention.key_length", "rope.dimension_count", "vocab_size"):
        assert values[f"gemma4.{key}"] == expected[f"gemma4.{key}"]


def test_a_chat_template_comes_along(checkpoint):
    (checkpoint / "chat_template.jinja").write_text("{{ 'é' }}", encoding="utf-8")
    assert convert_checkpoint(checkpoint).values["tokenizer.chat_template"].read() == "{{ 'é' }}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_bidirectional_attention", "all"),
        ("tie_word_embeddings", False),
        ("hidden_activation", "silu"),
        ("attention_bias", True),
        ("num_experts", None),
        ("num_hidden_layers", 5),
        ("layer_types", ["chunked_attention"] * 6),
        ("hidden_size", None),
        ("rope_parameters", {"full_attention": {"rope_type": "linear"}, "sliding_attention": {"rope_type": "default"}}),
    ],
)
def test_a_model_that_llama_cpp_does_not_compute_is_refused(checkpoint, key, value):
    edit(checkpoint, "config.json", lambda config: config["text_config"].update({key: value}))
    with pytest.raises(ModelUnsupportedError, match=r"config\.json: .*gemma4 graph computes"):
        convert_checkpoint(checkpoint)


def test_another_model_is_refused(checkpoint):
    edit(checkpoint, "config.json", lambda config: config.update(model_type="gemma4"))
    with pytest.raises(ModelUnsupportedError, match="holds a gemma4 checkpoint, no diffusion_gemma"):
        convert_checkpoint(checkpoint)


def test_an_encoder_of_its_own_is_refused(checkpoint):
    weights = all_weights(checkpoint)
    scale = "model.encoder.language_model.layers.2.layer_scalar"
    save_single(checkpoint, weights | {scale: weights[scale] + 1})
    with pytest.raises(ModelUnsupportedError, match=r"layers\.2\.layer_scalar differs from the decoder's scale"):
        convert_checkpoint(checkpoint)
    norm = "model.encoder.language_model.norm.weight"
    same = weights["model.decoder.norm.weight"].clone()
    save_single(checkpoint, weights | {norm: same})
    assert convert_checkpoint(checkpoint).size
    save_single(checkpoint, weights | {norm: same + 1})
    with pytest.raises(ModelUnsupportedError, match=r"norm\.weight differs from the decoder's weights"):
        convert_checkpoint(checkpoint)


def test_numbers_that_f16_cannot_hold_are_refused(checkpoint):
    weights = all_weights(checkpoint)
    weights[UP][3, 4] = 1e6
    save_single(checkpoint, weights)
    with pytest.raises(ModelUnsupportedError, match=f"{UP} holds numbers that F16 cannot: pass --type BF16"):
        stored(convert_checkpoint(checkpoint, F16), "blk.1.ffn_up.weight")


def test_what_is_missing_is_named(checkpoint):
    weights = all_weights(checkpoint)
    shard = sorted(checkpoint.glob("*.safetensors"))[1]
    shard.rename(shard.with_suffix(".gone"))
    with pytest.raises(InputFileError, match=rf"lacks {shard.name} \(1 of \d+ files\)"):
        convert_checkpoint(checkpoint)
    save_single(checkpoint, {name: w for name, w in weights.items() if name != UP})
    with pytest.raises(ModelBrokenError, match=r"lacks 1 tensors of a DiffusionGemma \(blk\.1\.ffn_up\.weight\)"):
        convert_checkpoint(checkpoint)
    save_single(checkpoint, {"other": torch.zeros(1)})
    with pytest.raises(ModelUnsupportedError, match="name the folder of a DiffusionGemma checkpoint"):
        convert_checkpoint(checkpoint)
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(InputFileError, match=r"neither model\.safetensors nor"):
        convert_checkpoint(checkpoint)
    (checkpoint / "config.json").unlink()
    with pytest.raises(InputFileError, match=r"config\.json cannot be read"):
        convert_checkpoint(checkpoint)


def test_damaged_files_are_refused(checkpoint):
    path = checkpoint / "model.safetensors"
    weights = all_weights(checkpoint)
    save_single(checkpoint, weights)
    whole = path.read_bytes()
    for data, says in (
        (whole[:-1000], "cut short"),
        (whole[:5], "no safetensors file"),
        (b"\xff" * 8 + whole[8:], "no safetensors file"),
        (whole.replace(b'"data_offsets"', b'"data_offzets"', 1), "is damaged"),
    ):
        path.write_bytes(data)
        with pytest.raises(ModelBrokenError, match=says):
            convert_checkpoint(checkpoint)
    save_single(checkpoint, weights | {"odd": torch.zeros(1, dtype=torch.int64)})
    with pytest.raises(ModelUnsupportedError, match="number format I64"):
        convert_checkpoint(checkpoint)
    (checkpoint / "config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(InputFileError, match=r"config\.json is damaged"):
        convert_checkpoint(checkpoint)
