"""GGUF files of the pull requests: what is kept, what is renamed, what is refused."""

import numpy as np
import pytest

from dg_lsp import gguf as v
from dg_lsp.errors import ModelBrokenError, ModelNotFoundError, ModelUnsupportedError
from dg_lsp.gguf import copied, read_header, write_gguf
from dg_lsp.models.convert import is_repacked, side_path, read_gguf, read_repacked, write_model
from dg_lsp.models.registry import BUNDLED

OLD = "diffusion-gemma."


def same_weights(one, other):
    mine, theirs = read_header(one), read_header(other)
    assert set(mine.tensors) == set(theirs.tensors)
    for name, tensor in mine.tensors.items():
        assert (tensor.shape, tensor.kind) == (theirs.tensors[name].shape, theirs.tensors[name].kind)
        assert np.array_equal(mine.rows(name), theirs.rows(name)), name
    return mine, theirs


def test_either_naming_becomes_the_direct_conversion(pull_request_gguf, tiny_repacked, tmp_path):
    target = tmp_path / "new.gguf"
    write_model(read_gguf(pull_request_gguf), target)
    mine, theirs = same_weights(target, tiny_repacked)
    mine_side, _ = same_weights(side_path(target), side_path(tiny_repacked))
    assert mine_side.architecture == "dg-selfcond"
    assert [(name, tensor.shape) for name, tensor in mine_side.tensors.items()] == [
        ("self_cond.pre_norm", (64,)),
        ("self_cond.gate", (96, 64)),
        ("self_cond.up", (96, 64)),
        ("self_cond.down", (64, 96)),
    ]
    values = {key: value.read() for key, value in mine.values.items()}
    expected = {key: value.read() for key, value in theirs.values.items()}
    assert values.pop("dg.self_conditioning") == "new.selfcond.gguf"
    assert expected.pop("dg.self_conditioning") == "tiny.selfcond.gguf"
    assert values == expected


def test_quantized_weights_stay_bit_by_bit(pull_request_gguf, tmp_path):
    """Rows in blocks are copied like any others: here norms of 64 numbers are taken for two blocks of Q8_0 and more."""
    data = bytearray(pull_request_gguf.read_bytes())
    at = data.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 2 * 8
    data[at : at + 4] = (8).to_bytes(4, "little")  # Q8_0 takes fewer bytes, so the file is long enough
    quantized = tmp_path / "quantized.gguf"
    quantized.write_bytes(data)
    parts = read_gguf(quantized)
    assert parts.is_quantized
    write_model(parts, tmp_path / "new.gguf")
    new = read_header(tmp_path / "new.gguf")
    assert new.tensors["token_embd.weight"].kind.name == "Q8_0"
    assert np.array_equal(new.rows("token_embd.weight"), read_header(quantized).rows("token_embd.weight"))


def test_what_the_file_leaves_out_is_what_the_model_has(pull_request_gguf, rewritten):
    left_out = ("attention.shared_kv_layers", "embedding_length_per_layer_input", "attention.causal")
    changes = dict.fromkeys((*(OLD + key for key in left_out), "diffusion.canvas_length"))
    values = {key: value.read() for key, value in read_gguf(rewritten(pull_request_gguf, changes)).values.items()}
    assert values["gemma4.attention.shared_kv_layers"] == values["gemma4.embedding_length_per_layer_input"] == 0
    assert values["dg.canvas_lengths"] == "16,32,64,128,256"
    assert not [key for key in values if key.startswith((OLD, "diffusion.")) or key.endswith(".causal")]


def test_a_canvas_under_either_key_counts(pull_request_gguf, rewritten):
    changes = {"diffusion.canvas_length": None, f"{OLD}diffusion.canvas_length": v.uint32(48)}
    values = read_gguf(rewritten(pull_request_gguf, changes)).values
    assert values["dg.canvas_lengths"].read() == "16,32,48"


def test_other_alignments_are_not_taken_over(pull_request_gguf, rewritten):
    path = rewritten(pull_request_gguf, {"general.alignment": v.uint32(32)})
    assert "general.alignment" not in read_gguf(path).values


@pytest.mark.parametrize("named", [1, 2])
def test_a_split_file_is_taken_whole(pull_request_gguf, tiny_repacked, tmp_path, named):
    header = read_header(pull_request_gguf)
    names = list(header.tensors)
    for number, part in ((1, names[:50]), (2, names[50:])):
        values = dict(header.values) if number == 1 else {}
        values |= {"split.no": v.uint32(number - 1), "split.count": v.uint32(2)}
        with (tmp_path / f"dg-{number:05}-of-00002.gguf").open("wb") as file:
            write_gguf(file, values, [copied(header.path, header.tensors[name]) for name in part])
    parts = read_gguf(tmp_path / f"dg-{named:05}-of-00002.gguf")
    assert not [key for key in parts.values if key.startswith("split.")]
    write_model(parts, tmp_path / "new.gguf")
    same_weights(tmp_path / "new.gguf", tiny_repacked)
    (tmp_path / "dg-00002-of-00002.gguf").rename(tmp_path / "other.gguf")
    with pytest.raises(ModelNotFoundError, match=r"lacks dg-00002-of-00002.gguf \(1 of 2 files\)"):
        read_gguf(tmp_path / "dg-00001-of-00002.gguf")
    with pytest.raises(ModelBrokenError, match="give it back its name"):
        read_gguf(tmp_path / "other.gguf")


def test_another_model_is_refused(pull_request_gguf, tiny_repacked, rewritten):
    def refusal(path):
        with pytest.raises(ModelUnsupportedError) as caught:
            read_gguf(path)
        return str(caught.value)

    gemma = {"general.architecture": v.text("gemma4")}
    assert "plain Gemma 4, which denoises nothing" in refusal(rewritten(pull_request_gguf, gemma))
    assert "repacked already" in refusal(tiny_repacked)
    assert "side file" in refusal(side_path(tiny_repacked))
    assert "architecture qwen3" in refusal(BUNDLED[0].path)
    assert "architecture unknown" in refusal(rewritten(pull_request_gguf, {"general.architecture": None}))


def test_an_encoder_of_its_own_is_refused(pull_request_gguf, rewritten):
    """llama.cpp's graph has one scale for prompt and canvas: with two of them answers would be quietly wrong."""
    twin = {"blk.3.layer_output_scale.weight": "blk.2.enc_layer_output_scale.weight"}
    drop = ("blk.2.enc_layer_output_scale.weight", "blk.3.enc_layer_output_scale.weight")
    path = rewritten(pull_request_gguf, drop=drop, rename=twin)
    with pytest.raises(ModelUnsupportedError, match=r"blk\.2\.enc_layer_output_scale\.weight differs from"):
        read_gguf(path)
    alone = {"blk.3.layer_output_scale.weight": "blk.3.enc_layer_output_scale.weight"}
    path = rewritten(pull_request_gguf, drop=("blk.3.enc_layer_output_scale.weight",), rename=alone)
    with pytest.raises(ModelBrokenError, match=r"lacks blk\.3\.layer_output_scale"):
        read_gguf(path)


@pytest.mark.parametrize("tensor", ["self_cond_up.weight", "blk.5.ffn_down_exps.weight", "rope_freqs.weight"])
def test_missing_tensors_are_named(pull_request_gguf, rewritten, tensor):
    name = tensor.replace("self_cond_up.weight", "self_cond.up")
    with pytest.raises(ModelBrokenError, match=rf"lacks 1 tensors of a DiffusionGemma \({name}\)"):
        read_gguf(rewritten(pull_request_gguf, drop=(tensor,)))


@pytest.mark.parametrize("key", [f"{OLD}block_count", f"{OLD}context_length", "tokenizer.ggml.tokens"])
def test_missing_metadata_is_named(pull_request_gguf, rewritten, key):
    with pytest.raises(ModelBrokenError, match=key):
        read_gguf(rewritten(pull_request_gguf, {key: None}))
    with pytest.raises(ModelBrokenError, match=key):
        read_gguf(rewritten(pull_request_gguf, {key: v.text("six")}))


def test_a_file_that_was_not_fetched_whole_is_refused(pull_request_gguf, tmp_path):
    part = tmp_path / "part.gguf"
    part.write_bytes(pull_request_gguf.read_bytes()[:-100_000])
    with pytest.raises(ModelBrokenError, match="cut short"):
        read_gguf(part)


def test_a_repacked_file_is_taken_apart_again(tiny_repacked, tmp_path):
    header = read_header(tiny_repacked)
    assert is_repacked(header)
    write_model(read_repacked(header), tmp_path / "again.gguf")
    same_weights(tmp_path / "again.gguf", tiny_repacked)
    same_weights(tmp_path / "again.selfcond.gguf", side_path(tiny_repacked))
    for change, says in ((bytes.upper, "is not the side file of again.gguf"), (None, "lacks its side file")):
        side = tmp_path / "again.selfcond.gguf"
        side.write_bytes(change(side.read_bytes())) if change else side.unlink()
        with pytest.raises(ModelBrokenError, match=says):
            read_repacked(read_header(tmp_path / "again.gguf"))
