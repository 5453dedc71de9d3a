"""The HTTP API: the engine as editors' plugins and OpenAI's clients know how to ask one."""
