"""Conversion of a DiffusionGemma: from GGUF files and checkpoints to two files."""

import json
import shutil

import numpy as np
import pytest
import tiny_diffusiongemma
import torch
from safetensors.torch import load_file, save_file

from dg_lsp import gguf
from dg_lsp.errors import InputFileError, ModelError, ModelUnsupportedError
from dg_lsp.gguf import BF16, F16, F32, Tensor, copied, read_header, write_gguf
from dg_lsp.models.convert import ModelParts, convert_checkpoint, read_gguf, side_path, write_model
from dg_lsp.models.metadata import read_folder

OLD = "diffusion-gemma."
NORM, ENCODER_NORM = "model.decoder.norm.weight", "model.encoder.language_model.norm.weight"
UP = "model.decoder.layers.1.mlp.up_proj.weight"
EXPERTS = "model.decoder.layers.1.experts.gate_up_proj"


@pytest.fixture(scope="module")
def published(tiny_repacked, tmp_path_factory):
    """The same model as a `diffusion-gemma` GGUF, as it is published."""
    return tiny_diffusiongemma.write_diffusion_gguf(tiny_repacked, tmp_path_factory.mktemp("published") / "dg.gguf")


@pytest.fixture
def checkpoint(tiny_checkpoint, tmp_path):
    return shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")


@pytest.fixture
def rewritten(published, tmp_path):
    """`rewritten({key: value or None}, drop=, rename=)`: the published file with other metadata and tensors."""

    def rewrite(changes=None, *, drop=(), rename=None):
        header = read_header(published)
        values = {key: value for key, value in (dict(header.values) | (changes or {})).items() if value is not None}
        names = {name: (rename or {}).get(name, name) for name in header.tensors if name not in drop}
        path = tmp_path / "rewritten.gguf"
        with path.open("wb") as file:
            write_gguf(file, values, [copied(header.tensors[old], new) for old, new in names.items()])
        return path

    return rewrite


# GGUF files


def same_weights(path, expected_path):
    header, expected = read_header(path), read_header(expected_path)
    assert set(header.tensors) == set(expected.tensors)
    for name, tensor in header.tensors.items():
        assert (tensor.shape, tensor.kind) == (expected.tensors[name].shape, expected.tensors[name].kind)
        assert np.array_equal(header.rows(name), expected.rows(name)), name
    return header, expected


def test_the_published_file_becomes_the_conversion_of_the_checkpoint(published, tiny_repacked, tmp_path):
    target = tmp_path / "new.gguf"
    write_model(read_gguf(published), target)
    header, expected_header = same_weights(target, tiny_repacked)
    side, _ = same_weights(side_path(target), side_path(tiny_repacked))
    assert side.architecture == "dg-selfcond"
    values = {key: value.read() for key, value in header.values.items()}
    expected = {key: value.read() for key, value in expected_header.values.items()}
    assert values.pop("dg.self_conditioning") == "new.selfcond.gguf"
    assert expected.pop("dg.self_conditioning") == "tiny.selfcond.gguf"
    assert values == expected


def test_a_gguf_with_a_different_encoder_is_refused(rewritten):
    """llama.cpp's graph has one scale for prompt and canvas, so different scales would give wrong results."""
    renamed = {"blk.3.layer_output_scale.weight": "blk.2.enc_layer_output_scale.weight"}
    drop = ("blk.2.enc_layer_output_scale.weight", "blk.3.enc_layer_output_scale.weight")
    with pytest.raises(ModelUnsupportedError, match=r"blk\.2\.enc_layer_output_scale\.weight differs from the decoder"):
        read_gguf(rewritten(drop=drop, rename=renamed))


@pytest.mark.parametrize(
    ("dropped", "changes", "message"),
    [
        (("blk.3.layer_output_scale.weight",), {}, r"lacks 1 tensors .*blk\.3\.layer_output_scale"),
        (("self_cond_up.weight",), {}, r"lacks 1 tensors of a DiffusionGemma \(self_cond\.up\)"),
        ((), {f"{OLD}block_count": None}, f"{OLD}block_count is missing or invalid"),
        ((), {f"{OLD}context_length": gguf.text("six")}, f"{OLD}context_length is missing or invalid"),
        ((), {"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens"),
        ((), {"tokenizer.ggml.token_type": gguf.int32s([1, 1])}, "not lists of one length"),
        ((), {"split.count": gguf.uint32(2)}, "is one of several files: join them with llama-gguf-split"),
    ],
)
def test_missing_or_invalid_parts_of_a_gguf_are_named(rewritten, dropped, changes, message):
    with pytest.raises(ModelError, match=message):
        read_gguf(rewritten(changes, drop=dropped))


# checkpoints


def edit(folder, name, change):
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


@pytest.mark.parametrize(("kind", "dtype"), [(F32, torch.float32), (F16, torch.float16), (BF16, torch.bfloat16)])
def test_matrices_keep_their_number_format_and_the_encoder_may_be_stored_too(checkpoint, kind, dtype, monkeypatch):
    monkeypatch.setattr(gguf, "BLOCK_BYTES", 4000)  # several blocks, the last one shorter
    weights = {name: w.to(dtype) for name, w in all_weights(checkpoint).items()}
    save_single(checkpoint, weights | {ENCODER_NORM: weights[NORM].clone()})
    parts = convert_checkpoint(checkpoint)
    for name, saved_name in (("blk.1.ffn_up.weight", UP), ("blk.1.ffn_gate_up_exps.weight", EXPERTS)):
        assert stored(parts, name) == (kind, weights[saved_name].contiguous().view(torch.uint8).numpy().tobytes())
    norm = weights[NORM].float().numpy().tobytes()
    assert stored(parts, "output_norm.weight") == (F32, norm)
    assert stored(parts, "blk.0.ffn_gate_inp.weight")[0] is F32


def test_the_sampler_settings_of_the_checkpoint_are_kept(checkpoint):
    sampler = {"t_max": 0.9, "t_min": 0.3, "sampler_config": {"entropy_bound": 0.25}, "confidence_threshold": 0.01}
    sampler |= {"max_denoising_steps": 12, "stability_threshold": 2, "eos_token_id": 106}
    edit(checkpoint, "generation_config.json", lambda config: config.update(sampler))
    values = {key: value.read() for key, value in convert_checkpoint(checkpoint).values.items()}
    names = ("t_max", "t_min", "entropy_bound", "stop_confidence")
    assert [values[f"dg.{name}"] for name in names] == pytest.approx([0.9, 0.3, 0.25, 0.01])
    assert (values["dg.max_denoising_steps"], values["dg.stability_threshold"]) == (12, 2)
    assert values["dg.end_token_ids"] == "106"
    assert "1" in values["dg.banned_token_ids"].split(",")
    (checkpoint / "generation_config.json").unlink()
    assert convert_checkpoint(checkpoint).values["dg.end_token_ids"].read() == "1,106,50"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_bidirectional_attention", "all"),
        ("tie_word_embeddings", False),
        ("num_experts", None),
        ("rope_parameters", {"full_attention": {"rope_type": "linear"}, "sliding_attention": {"rope_type": "default"}}),
    ],
)
def test_a_configuration_that_llama_cpp_does_not_compute_is_refused(checkpoint, key, value):
    edit(checkpoint, "config.json", lambda config: config["text_config"].update({key: value}))
    with pytest.raises(ModelUnsupportedError, match=r"config\.json: .*gemma4 graph computes"):
        convert_checkpoint(checkpoint)


@pytest.mark.parametrize("change", [{"t_max": "hot"}, {"eos_token_id": {"id": 1}}])
def test_a_damaged_generation_config_is_refused_by_every_reader(checkpoint, change):
    edit(checkpoint, "generation_config.json", lambda config: config.update(change))
    with pytest.raises(InputFileError, match=r"generation_config\.json is damaged"):
        convert_checkpoint(checkpoint)
    with pytest.raises(ModelError, match=r"generation_config\.json is damaged"):
        read_folder(checkpoint)


WRONG_WEIGHTS = {
    "a different encoder": (lambda weights: weights | {ENCODER_NORM: weights[NORM] + 1}, r"norm\.weight differs from"),
    "another model": (lambda _: {"other": torch.zeros(1)}, "name the folder of a DiffusionGemma checkpoint"),
    "another format": (lambda weights: weights | {"odd": torch.zeros(1, dtype=torch.int64)}, "number format I64"),
}


@pytest.mark.parametrize(("change", "problem"), WRONG_WEIGHTS.values(), ids=WRONG_WEIGHTS)
def test_weights_of_another_model_or_format_are_refused(checkpoint, change, problem):
    save_single(checkpoint, change(all_weights(checkpoint)))
    with pytest.raises(ModelError, match=problem):
        convert_checkpoint(checkpoint)


def test_a_negative_size_is_refused(checkpoint):
    save_single(checkpoint, all_weights(checkpoint))
    path = checkpoint / "model.safetensors"
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = data[8:end].replace(b'"shape":[96,', b'"shape":[-1,-96,')
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[end:])
    with pytest.raises(ModelError, match="is not a safetensors file, or is damaged"):
        convert_checkpoint(checkpoint)


# output


@pytest.mark.parametrize("error", [ModelError, KeyboardInterrupt])
def test_a_failure_or_an_interruption_leaves_no_files(tiny_checkpoint, tmp_path, error):
    def blocks():
        assert len(list(tmp_path.iterdir())) == 2
        if error is KeyboardInterrupt:
            raise error
        return (b"too short",)

    parts = convert_checkpoint(tiny_checkpoint)
    parts = ModelParts(parts.values, (*parts.main, Tensor("last", (10, 10), F16, blocks)), parts.side)
    with pytest.raises(error):
        write_model(parts, tmp_path / "a.gguf")
    assert not list(tmp_path.iterdir())
