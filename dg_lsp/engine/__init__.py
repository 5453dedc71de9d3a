"""One request in, ranked candidates out. Is handed a denoiser; imports no runtime."""
