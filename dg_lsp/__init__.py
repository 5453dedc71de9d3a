"""A language server that fills code with a block-diffusion language model."""

__version__ = "0.2.0"
