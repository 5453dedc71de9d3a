# ruff: noqa: E402 - what may be missing is asked for first
import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from dg_lsp.training.noise import draw_hidden
from dg_lsp.training.objective import without_canvases
from dg_lsp.training.trainer import Report, Trainer
from dg_lsp.training.vocabulary import MASK


@pytest.fixture
def config(toy, tmp_path, monkeypatch):
    """A configuration whose runs lie in a folder of this test's own."""
    monkeypatch.setattr("dg_lsp.training.trainer.REPORT_STEPS", 1)
    monkeypatch.setattr("dg_lsp.training.trainer.NUM_VALIDATION", 2)
    (tmp_path / "tokenizer.json").symlink_to(toy.root / "tokenizer.json")
    for split in ("train", "val"):
        (tmp_path / split).symlink_to(toy.root / split)
    return toy.config


def make(tmp_path, config):
    return Trainer(tmp_path, config, compiled=False)


def test_two_parts_equal_one_run(config, tmp_path):
    whole = make(tmp_path, config)
    whole.run(lambda _: None, max_steps=4)
    first = make(tmp_path, config)
    first.run(lambda _: None, max_steps=2)
    second = make(tmp_path, config)
    second.resume()
    progress = second.run(lambda _: None, max_steps=2)
    assert progress.step == whole.progress.step == 4
    assert progress.tokens == whole.progress.tokens == 4 * 2 * 256
    for name in ("network", "average"):
        for a, b in zip(getattr(whole, name).parameters(), getattr(second, name).parameters(), strict=True):
            assert torch.equal(a, b)


def test_it_learns_and_reports(config, tmp_path):
    news = []
    trainer = make(tmp_path, config)
    trainer.run(news.append, max_steps=25)
    reports = [n for n in news if isinstance(n, Report)]
    assert [r.step for r in reports] == list(range(1, 26))
    assert reports[-1].following < reports[0].following - 1
    assert reports[-1].content < reports[0].content - 0.5
    validation = news[-1]
    assert {"ar_middle", "content", "fill", "content_full_mask", "average"} <= set(validation)
    json.dumps(validation)
    assert trainer.path.exists()
    assert not list(trainer.path.parent.glob("*.partial"))


def test_several_rows_workers_feed_in_a_fixed_order(config, tmp_path, toy):
    from contextlib import closing

    from dg_lsp.training.feed import Feed

    two = toy.replace(config, workers=2)
    with closing(Feed(tmp_path, two)) as feed:
        stream = iter(feed)
        first = [next(stream).tokens.tolist() for _ in range(3)]
        state = feed.state
        expected = next(stream).tokens.tolist()
    assert first[0] != first[1]
    with closing(Feed(tmp_path, two, state)) as feed:
        assert next(iter(feed)).tokens.tolist() == expected


def test_a_masked_token_is_not_seen(config, tmp_path):
    """Changing what stands behind a mask changes its target, never the prediction; clean slots see no canvas."""
    trainer = make(tmp_path, config)
    b = trainer.held_out[0]
    hidden, _ = draw_hidden(b["length"], b["truth"].shape[2], 0.15, 0.3, torch.Generator().manual_seed(5))
    other = dict(b, truth=torch.where(hidden, (b["truth"] + 7) % 500 + 1, b["truth"]))
    seen = []
    network = trainer.network
    hook = network.norm.register_forward_hook(lambda _module, _args, out: seen.append(out))
    for batch in (b, other):
        trainer.objective.losses(batch, torch.Generator().manual_seed(5))
    hook.remove()
    assert torch.equal(seen[0], seen[1])
    assert (b["truth"] != MASK).all()


def test_losses_leave_out_what_has_no_target(config, tmp_path):
    trainer = make(tmp_path, config)
    batch = trainer.held_out[0]
    losses = trainer.objective.losses(batch, torch.Generator().manual_seed(5))
    inside = (batch["document"][:, 1:] == batch["document"][:, :-1]) & (batch["document"][:, 1:] >= 0)
    assert len(losses.next) == int(inside.sum()) == len(losses.next_in_middle)
    assert len(losses.slot) == len(losses.slot_is_fill) == len(losses.slot_kind)
    plain = replace(config, fill_weight=1.0, lead_weight=0.0, next_weight=1.0, inverse_rate=0.0)
    light, heavy = (losses.total(replace(plain, fill_weight=weight)).item() for weight in (0.0, 1.0))
    content = losses.slot[~losses.slot_is_fill].mean().item()
    assert light == pytest.approx(losses.next.mean().item() + content, rel=1e-5)
    assert heavy == pytest.approx(losses.next.mean().item() + losses.slot.mean().item(), rel=1e-5)
    first = losses.slot[(losses.slot_rank == 0) & ~losses.slot_is_fill].mean().item()
    leading = losses.total(replace(plain, fill_weight=0.0, lead_weight=1e9)).item() - losses.next.mean().item()
    weights = 0.5 ** losses.slot_rank[~losses.slot_is_fill]
    assert leading == pytest.approx(
        (losses.slot[~losses.slot_is_fill] * weights).sum().item() / weights.sum().item(), rel=1e-3
    )
    assert int((losses.slot_rank == 0).sum()) == int((batch["length"] > 0).sum())
    assert first > 0


def test_slots_of_a_canvas_with_little_hidden_can_weigh_more(config, tmp_path):
    trainer = make(tmp_path, config)
    losses = trainer.objective.losses(trainer.held_out[0], torch.Generator().manual_seed(5))
    assert float(losses.slot_share.min()) > 0
    assert float(losses.slot_share.max()) == 1.0
    inverse = replace(config, fill_weight=1.0, lead_weight=0.0, next_weight=0.0, inverse_rate=2.0)
    weights = (1 / losses.slot_share).clamp(max=2.0)
    expected = (losses.slot * weights).sum() / weights.sum()
    assert losses.total(inverse).item() == pytest.approx(expected.item())


def test_a_step_without_canvases_learns_from_the_clean_stream_alone(config, tmp_path):
    trainer = make(tmp_path, config)
    batch = trainer.held_out[0]
    whole = trainer.objective.losses(batch, torch.Generator().manual_seed(5))
    alone = trainer.objective.losses(without_canvases(batch), torch.Generator().manual_seed(5))
    torch.testing.assert_close(whole.next, alone.next)
    assert not len(alone.slot)
    assert alone.total(config).item() == pytest.approx(alone.next.mean().item())


def test_steps_without_canvases_are_spread_evenly_and_end_in_time(config, tmp_path):
    trainer = make(tmp_path, replace(config, causal_share=0.5, causal_until=0.6))
    kinds = []
    for step in range(8):
        trainer.progress.step = step
        kinds.append(trainer.is_causal(0.1))
    assert kinds == [False, True] * 4
    assert not trainer.is_causal(0.6)
    assert not any(make(tmp_path, replace(config, causal_share=0.0)).is_causal(share) for share in (0.0, 0.3))


def test_thirty_steps_on_200_lines_lower_the_loss_and_two_parts_equal_one(config, tmp_path, toy):
    from dg_lsp.training.store import build_store, write_store

    text = "\n".join("\n".join(toy.texts).split("\n")[:200]) + "\n"
    (tmp_path / "train").unlink()
    write_store(tmp_path / "train", build_store([text], toy.tokenizer))
    news: list = []
    whole = make(tmp_path, config)
    whole.run(news.append, max_steps=30)
    reports = [n for n in news if isinstance(n, Report)]
    assert sum(r.following for r in reports[-5:]) < 0.8 * sum(r.following for r in reports[:5])
    make(tmp_path, config).run(lambda _: None, max_steps=13)
    resumed = make(tmp_path, config)
    resumed.resume()
    resumed.run(lambda _: None, max_steps=17)
    for a, b in zip(whole.network.parameters(), resumed.network.parameters(), strict=True):
        assert torch.equal(a, b)
