"""Records of what happened, and statistics over them. Knows no model, no clock and no file."""
