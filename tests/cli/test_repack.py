"""`dg-lsp models repack`: what is written where, and what is said where it cannot be."""

from types import SimpleNamespace

import pytest
import tiny_diffusiongemma

from dg_lsp.gguf import read_header
from dg_lsp.models import convert


@pytest.fixture
def pull_request_gguf(tiny_repacked, tmp_path):
    return tiny_diffusiongemma.write_diffusion_gguf(tiny_repacked, tmp_path / "gemma.gguf")


def test_a_gguf_is_repacked_beside_itself(dg_lsp, pull_request_gguf, tmp_path):
    outcome = dg_lsp("models", "repack", pull_request_gguf)
    assert (outcome.code, outcome.out) == (0, f"{tmp_path / 'gemma-dg.gguf'}\n")
    assert outcome.err == "keep gemma-dg.selfcond.gguf beside it\n"
    assert read_header(tmp_path / "gemma-dg.gguf").architecture == "gemma4"
    assert read_header(tmp_path / "gemma-dg.selfcond.gguf").architecture == "dg-selfcond"
    again = dg_lsp("models", "repack", pull_request_gguf)
    assert again.code == 2
    assert "gemma-dg.gguf is there already: remove it, or pass another name with -o" in again.err


def test_a_checkpoint_is_written_where_one_is(dg_lsp, tiny_checkpoint, tmp_path):
    outcome = dg_lsp("models", "repack", tiny_checkpoint)
    assert (outcome.code, outcome.out) == (0, "tiny-diffusiongemma-F32.gguf\n")
    outcome = dg_lsp("models", "repack", tiny_checkpoint, "--type", "bf16")
    assert (outcome.code, outcome.out) == (0, "tiny-diffusiongemma-BF16.gguf\n")
    header = read_header(tmp_path / "tiny-diffusiongemma-BF16.gguf")
    assert header.tensors["token_embd.weight"].kind.name == "BF16"


def test_quantizing_goes_through_llama_cpp(dg_lsp, tiny_checkpoint, pull_request_gguf, tmp_path):
    """From a checkpoint, from a pull request's file, and from one that is repacked already: the same weights."""
    made = []
    for source in (tiny_checkpoint, pull_request_gguf, tmp_path / "whole.gguf"):
        if source.name == "whole.gguf":
            assert dg_lsp("models", "repack", tiny_checkpoint, "-o", source).code == 0
        target = tmp_path / f"{len(made)}.gguf"
        outcome = dg_lsp("models", "repack", source, "--type", "Q8_0", "-o", target)
        assert (outcome.code, outcome.out) == (0, f"{target}\n")
        header = read_header(target)
        assert header.values["dg.self_conditioning"].read() == f"{target.stem}.selfcond.gguf"
        assert header.tensors["blk.0.ffn_up.weight"].kind.name == "Q8_0"
        made.append({name: header.rows(name).tobytes() for name in header.tensors})
    assert made[0] == made[1] == made[2]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    refused = dg_lsp("models", "repack", target, "--type", "Q4_0")
    assert refused.code == 2
    assert "is quantized already, and another type would lose accuracy: leave out --type" in refused.err


def test_split_files_lose_their_numbers(dg_lsp, pull_request_gguf, tmp_path):
    """A split of one file is none."""
    pull_request_gguf.rename(tmp_path / "gemma-00001-of-00001.gguf")
    assert dg_lsp("models", "repack", tmp_path / "gemma-00001-of-00001.gguf").out == f"{tmp_path / 'gemma-dg.gguf'}\n"


def test_no_disk_is_said_before_anything_is_written(dg_lsp, tiny_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(convert.shutil, "disk_usage", lambda _: SimpleNamespace(free=68_000_000))
    outcome = dg_lsp("models", "repack", tiny_checkpoint)
    assert outcome.code == 2
    assert "needs 0.1 GB free and has 0.1: make room there, or pass another folder with -o" in outcome.err
    assert not list(tmp_path.iterdir())


def test_wrong_use_is_told_in_one_line(dg_lsp, tiny_repacked, tmp_path):
    (tmp_path / "empty").mkdir()
    for arguments, code, says in (
        (("none.gguf",), 3, "none.gguf does not exist"),
        ((tmp_path / "empty",), 2, "config.json cannot be read"),
        ((tiny_repacked,), 3, "is repacked already: use it as it is"),
        ((tiny_repacked, "--type", "Q9"), 2, "no type 'Q9' for weights"),
        ((tiny_repacked, "--type", "Q8_0", "-o", "a.bin"), 2, "let it end in .gguf"),
        ((tiny_repacked, "--type", "Q8_0", "-o", tmp_path / "none" / "a.gguf"), 2, "is no folder"),
    ):
        outcome = dg_lsp("models", "repack", *arguments)
        assert (outcome.code, outcome.out) == (code, "")
        assert says in outcome.err
        assert outcome.err.count("\n") == 1
