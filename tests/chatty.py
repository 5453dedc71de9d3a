"""A model that follows instructions as far as it recites an answer to any of them."""

from dataclasses import replace

from scripted import END_ID, MASK_SPEC, MIDDLE_ID, PREFIX_ID, SUFFIX_ID, ScriptedDenoiser

from dg_lsp.canvas.spec import PromptFormat

HI = {"messages": [{"role": "user", "content": "hi"}]}
"""The body of a chat."""
# what follows the last one is what a script goes on from
SPECIALS = {"<bos>": END_ID, "<|turn>": END_ID, "<turn|>": PREFIX_ID, "<|channel>": SUFFIX_ID, "<channel|>": MIDDLE_ID}


def chatty(answer, spec=MASK_SPEC, **script):
    """A scripted denoiser with Gemma's chat template."""
    spec = replace(spec, fim=None, prompt_format=PromptFormat.INSTRUCT, template="gemma4", max_prompt_tokens=512)
    denoiser = ScriptedDenoiser(answer, spec=spec, **script)
    denoiser.tokenizer.special = SPECIALS.get
    return denoiser
