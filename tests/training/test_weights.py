"""Weights that come back from a file as they went in."""
# ruff: noqa: E402 - what may be missing is asked for first

import pytest

torch = pytest.importorskip("torch")
gguf = pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

from dg_lsp.training.gguf_file import Description, read_gguf, write_gguf
from dg_lsp.training.network import Network
from dg_lsp.training.trainer import Trainer
from dg_lsp.training.weights import from_gguf

DESCRIPTION = Description("tiny", (8, 16), 128, 4321, plans={"line-end.causal": "5,0,0,0.3"})


@pytest.fixture
def network(toy):
    torch.manual_seed(4)
    return Network(toy.config.network).eval()


def write(path, network, toy, kind):
    write_gguf(path, network, toy.tokenizer, DESCRIPTION, kind)
    return path


def test_weights_and_tokens_seen_come_back(toy, network, tmp_path):
    weights, tokens = read_gguf(write(tmp_path / "a.gguf", network, toy, "F32"), toy.config.network)
    assert tokens == 4321
    assert weights.keys() == network.state_dict().keys()
    for name, weight in network.state_dict().items():
        assert torch.equal(weight, weights[name])


def test_a_quantized_file_described_anew_holds_the_same_bytes(toy, network, tmp_path):
    first = write(tmp_path / "a.gguf", network, toy, "Q8_0")
    again = write(tmp_path / "b.gguf", from_gguf(first, toy.config).network, toy, "Q8_0")
    assert first.read_bytes() == again.read_bytes()


def test_the_file_says_what_the_description_says(toy, network, tmp_path):
    reader = gguf.GGUFReader(write(tmp_path / "a.gguf", network, toy, "F16"))
    assert reader.get_field("dg.plan.line-end.causal").contents() == "5,0,0,0.3"
    assert reader.get_field("dg.echo_match").contents() == 3


def test_a_file_of_another_size_is_refused(toy, network, tmp_path):
    path = write(tmp_path / "a.gguf", network, toy, "F16")
    with pytest.raises(ValueError, match="does not hold weights"):
        read_gguf(path, toy.replace(toy.config.network, layers=3))


def test_a_run_can_begin_with_a_file(toy, network, tmp_path):
    path = write(tmp_path / "a.gguf", network, toy, "F32")
    trainer = Trainer(toy.root, toy.config, compiled=False)
    trainer.start_from(path)
    assert trainer.progress.tokens == 4321
    for ours, theirs in zip(trainer.average.parameters(), network.parameters(), strict=True):
        assert torch.equal(ours, theirs)
