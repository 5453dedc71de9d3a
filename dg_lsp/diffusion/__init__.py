"""The denoising algorithm: numpy only, no model runtime, no text."""
