# ruff: noqa: E402 - what may be missing is asked for first
import pytest

torch = pytest.importorskip("torch")

from dg_lsp.training.config import OptimizerConfig
from dg_lsp.training.muon import Muon
from dg_lsp.training.optimizers import rate_scale


def test_muon_is_torchs_muon():
    generator = torch.Generator().manual_seed(0)
    shapes = [(32, 16), (16, 32), (32, 16), (24, 24)]
    ours = [torch.nn.Parameter(torch.randn(s, generator=generator)) for s in shapes]
    theirs = [torch.nn.Parameter(w.detach().clone()) for w in ours]
    a = Muon(ours, lr=0.02, weight_decay=0.05)
    b = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        for x, y in zip(ours, theirs, strict=True):
            x.grad = torch.randn(x.shape, generator=generator)
            y.grad = x.grad.clone()
        a.step()
        b.step()
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=2e-3)  # bfloat16 inside


def test_the_rate_warms_up_stays_and_falls_to_zero():
    config = OptimizerConfig(warmup_steps=10, decay_from=0.6)
    assert rate_scale(config, 0, 0.0) == pytest.approx(0.1)
    assert rate_scale(config, 500, 0.3) == rate_scale(config, 500, 0.6) == pytest.approx(1.0)
    assert rate_scale(config, 500, 0.8) == pytest.approx(0.5)
    assert rate_scale(config, 500, 1.0) == pytest.approx(0.0)
    assert rate_scale(config, 500, 1.1) == 0.0
