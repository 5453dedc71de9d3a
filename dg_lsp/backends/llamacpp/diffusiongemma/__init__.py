"""DiffusionGemma in llama.cpp: self-conditioning, and the reduction of its logits."""
