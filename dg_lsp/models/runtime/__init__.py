"""A changed llama.cpp for DiffusionGemma, made from the source of the llama-cpp-python that is installed."""
