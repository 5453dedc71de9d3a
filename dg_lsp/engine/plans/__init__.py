"""How one request is decoded. Every plan is a generator with one forward pass per value over the same denoiser."""

from dg_lsp.engine.plans.name import PlanName

__all__ = ["PlanName"]
