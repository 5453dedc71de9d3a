"""A block of token ids to denoise, some of them frozen, and the prompt formats that make one."""
