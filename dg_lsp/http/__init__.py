"""The HTTP API: completions and chats in the dialects of editor plugins and OpenAI clients."""
