# ruff: noqa: E402 - what may be missing is asked for first
import pytest

torch = pytest.importorskip("torch")

from dg_lsp.training import replicas
from dg_lsp.training.replicas import Replicas


def weight(*gradient):
    made = torch.nn.Parameter(torch.zeros(len(gradient)))
    made.grad = torch.tensor(gradient)
    return made


def test_one_process_is_left_alone():
    alone = Replicas()
    w = weight(1.0, 2.0)
    alone.average_gradients([w])
    assert w.grad.tolist() == [1.0, 2.0]
    assert alone.agreed(3.5) == 3.5
    assert alone.gathered("x") == ["x"]


def test_gradients_are_averaged_in_place(monkeypatch):
    other = torch.tensor([3.0, 0.0, 5.0])
    monkeypatch.setattr(replicas.dist, "all_reduce", lambda flat: flat.add_(other))
    a, b = weight(1.0, 2.0), weight(-1.0)
    kept = a.grad
    Replicas(1, 2).average_gradients([a, b])
    assert a.grad is kept
    assert a.grad.tolist() == [2.0, 1.0]
    assert b.grad.tolist() == [2.0]


def test_decisions_are_the_first_ones(monkeypatch):
    monkeypatch.setattr(replicas.dist, "broadcast", lambda shared, _source: shared.fill_(7.25))
    assert Replicas(1, 2).agreed(1.0) == 7.25
