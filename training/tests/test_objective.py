import pytest
import torch

from dg_training import objective
from dg_training.network import DiffusionNetwork
from dg_training.objective import FULL, LEFT, RANDOM, Objective, draw_masks
from dg_training.tokenizer import MASK


def generator(seed):
    return torch.Generator().manual_seed(seed)


def test_masks_are_at_used_positions_and_noise_kinds_have_their_shares():
    length = torch.randint(0, 17, (200, 20), generator=generator(1))
    masked, kind = draw_masks(length, 16, generator(2))
    used = torch.arange(16) < length[..., None]
    assert not (masked & ~used).any()
    assert (masked.any(-1) == (length > 0)).all()
    assert (masked == used)[kind == FULL].all()
    left = masked[kind == LEFT]
    assert ((left.cumsum(-1) > 0) & used[kind == LEFT] == left).all()  # all masks come after the known part
    shares = [(kind == k).float().mean().item() for k in (FULL, LEFT, RANDOM)]
    assert shares == pytest.approx([0.15, 0.3, 0.55], abs=0.03)
    rate = masked[kind == RANDOM].float().sum() / used[kind == RANDOM].float().sum()
    assert rate.item() == pytest.approx(0.52, abs=0.05)


@pytest.fixture(scope="module")
def batch(toy):
    return objective.validation_batches(toy.rows, torch.device("cpu"), 1)[0]


@pytest.fixture(scope="module")
def model(toy):
    torch.manual_seed(1)
    return Objective(DiffusionNetwork(toy.network))


def test_predictions_do_not_depend_on_masked_tokens(model, batch):
    masked, _ = draw_masks(batch["length"], batch["target"].shape[2], generator(5))
    changed = dict(batch, target=torch.where(masked, (batch["target"] + 7) % 300 + 1, batch["target"]))
    states = []
    hook = model.network.output_norm.register_forward_hook(lambda _module, _inputs, out: states.append(out))
    for b in (batch, changed):
        model.losses(b, generator(5))
    hook.remove()
    assert torch.equal(*states)
    assert (batch["target"] != MASK).all()


def test_the_loss_weighs_middles_and_the_leftmost_mask_more_and_fill_less(model, batch, monkeypatch):
    losses = model.losses(batch, generator(5))
    inside = (batch["document"][:, 1:] == batch["document"][:, :-1]) & (batch["document"][:, 1:] >= 0)
    assert len(losses.next) == len(losses.next_in_middle) == int(inside.sum())
    assert int((losses.masked_rank == 0).sum()) == int((batch["length"] > 0).sum())

    def total(**weights):
        for name, value in weights.items():
            monkeypatch.setattr(objective, f"{name}_WEIGHT", value)
        return losses.total().item()

    content = losses.masked[~losses.masked_is_fill]
    following = losses.next.mean().item()
    plain = following + losses.masked.mean().item()
    assert total(MIDDLE=1.0, FILL=1.0, LEFTMOST=0.0) == pytest.approx(plain, rel=1e-5)
    assert total(FILL=0.0) == pytest.approx(following + content.mean().item(), rel=1e-5)
    ranks = 0.5 ** losses.masked_rank[~losses.masked_is_fill]
    leftmost = ((content * ranks).sum() / ranks.sum()).item()
    assert total(LEFTMOST=1e9) - following == pytest.approx(leftmost, rel=1e-3)
    middle = losses.next[losses.next_in_middle].mean().item()
    assert total(LEFTMOST=0.0, MIDDLE=1e9) == pytest.approx(middle + content.mean().item(), rel=1e-3)


def test_a_batch_without_canvases_has_the_same_next_token_loss(model, batch, monkeypatch):
    with_canvases, alone = (model.losses(b, generator(5)) for b in (batch, objective.without_canvases(batch)))
    torch.testing.assert_close(with_canvases.next, alone.next)
    assert not len(alone.masked)
    monkeypatch.setattr(objective, "MIDDLE_WEIGHT", 1.0)
    assert alone.total().item() == pytest.approx(alone.next.mean().item())
