# ruff: noqa: E402 - what may be missing is asked for first
import pytest

torch = pytest.importorskip("torch")

from dg_lsp.training.noise import FULL, LEFT, RANDOM, draw_hidden


@pytest.fixture(scope="module")
def drawn():
    length = torch.randint(0, 17, (200, 20), generator=torch.Generator().manual_seed(1))
    hidden, kind = draw_hidden(length, 16, 0.2, 0.3, torch.Generator().manual_seed(2))
    return length, hidden, kind


def test_only_used_slots_are_hidden_and_at_least_one(drawn):
    length, hidden, _ = drawn
    used = torch.arange(16) < length[..., None]
    assert not (hidden & ~used).any()
    assert (hidden.any(-1) == (length > 0)).all()


def test_kinds(drawn):
    length, hidden, kind = drawn
    used = torch.arange(16) < length[..., None]
    assert (hidden == used)[kind == FULL].all()
    left = hidden[kind == LEFT]
    # what is known is a beginning: once a slot is hidden, all used ones after it are
    assert ((left.cumsum(-1) > 0) & used[kind == LEFT] == left).all()
    shares = [(kind == k).float().mean().item() for k in (FULL, LEFT, RANDOM)]
    assert shares == pytest.approx([0.2, 0.3, 0.5], abs=0.03)
    rate = hidden[kind == RANDOM].float().sum() / used[kind == RANDOM].float().sum()
    assert rate.item() == pytest.approx(0.52, abs=0.05)
