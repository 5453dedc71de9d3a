# ruff: noqa: E402 - what may be missing is asked for first
import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import cross_entropy as reference

from dg_lsp.training import cross_entropy
from dg_lsp.training.cross_entropy import linear_cross_entropy


@pytest.fixture
def problem():
    torch.manual_seed(3)
    states = torch.randn(150, 16, requires_grad=True)
    embedding = torch.randn(40, 16, requires_grad=True)
    return states, embedding, torch.randint(0, 40, (150,)), torch.rand(150)


@pytest.mark.parametrize(("piece", "chunk"), [(64, 1024), (7, 32), (1, 150)])
def test_losses_and_gradients_are_those_of_torch(problem, monkeypatch, piece, chunk):
    monkeypatch.setattr(cross_entropy, "SLICE", piece)
    monkeypatch.setattr(cross_entropy, "CHUNK", chunk)
    states, embedding, targets, weights = problem
    expected = reference(states @ embedding.t(), targets, reduction="none")
    gradients = torch.autograd.grad((expected * weights).sum(), [states, embedding])
    losses = linear_cross_entropy(states, embedding, targets)
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(torch.autograd.grad((losses * weights).sum(), [states, embedding]), gradients)


def test_no_target_is_no_loss(problem):
    states, embedding, targets, _ = problem
    losses = linear_cross_entropy(states[:0], embedding, targets[:0])
    assert losses.shape == (0,)
    losses.sum().backward()
    assert embedding.grad is not None
    assert not embedding.grad.any()


def test_autocast_decides_the_type_of_the_products_and_losses_stay_float32(problem):
    states, embedding, targets, _ = problem
    with torch.autocast("cpu", torch.bfloat16):
        losses = linear_cross_entropy(states, embedding, targets)
    assert losses.dtype == torch.float32
    expected = reference(states @ embedding.t(), targets, reduction="none")
    torch.testing.assert_close(losses, expected, rtol=0.05, atol=0.1)
    losses.sum().backward()
    assert states.grad is not None
    assert states.grad.dtype == torch.float32


def test_a_hopeless_target_has_a_finite_loss():
    states = torch.full((1, 4), 100.0)
    embedding = torch.tensor([[1.0] * 4, [-1.0] * 4])
    assert linear_cross_entropy(states, embedding, torch.tensor([1])).isfinite().all()
