"""Campaigns of hostile input, with independent models of what must happen. `make soak` runs all of them."""
