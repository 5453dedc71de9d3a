"""A tiny DiffusionGemma in every form that is repacked."""

import shutil

import pytest
import tiny_diffusiongemma

from dg_lsp.gguf import copied, read_header, write_gguf


@pytest.fixture(scope="session", params=["24423", "24427"])
def pull_request_gguf(request, tiny_repacked, tmp_path_factory):
    """The same model as a `diffusion-gemma` GGUF, in each pull request's naming."""
    target = tmp_path_factory.mktemp("pull-request") / f"dg-{request.param}.gguf"
    return tiny_diffusiongemma.write_diffusion_gguf(tiny_repacked, target, naming=request.param)


@pytest.fixture
def checkpoint(tiny_checkpoint, tmp_path):
    """A copy of the tiny checkpoint that a test may damage."""
    return shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")


@pytest.fixture
def rewritten(tmp_path):
    """`rewritten(path, {key: value or None}, drop=, rename=)`: a GGUF with other metadata and tensors."""

    def rewrite(path, changes=None, *, drop=(), rename=None, name="rewritten.gguf"):
        header = read_header(path)
        values = {key: value for key, value in (dict(header.values) | (changes or {})).items() if value is not None}
        tensors = [
            copied(path, tensor, (rename or {}).get(tensor.name))
            for tensor in header.tensors.values()
            if tensor.name not in drop
        ]
        with (tmp_path / name).open("wb") as file:
            write_gguf(file, values, tensors)
        return tmp_path / name

    return rewrite
