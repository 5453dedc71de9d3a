"""Models behind a server that has OpenAI's or llama.cpp's API; the only package that imports httpx."""
