"""DiffusionGemma in llama.cpp: self-conditioning, the reduction of its logits, and the check of the loaded library."""
