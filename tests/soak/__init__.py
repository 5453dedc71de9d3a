"""Campaigns of hostile input, with independent models of what must happen. `make soak` runs all of them."""

import os

os.environ["DG_LSP_AUTO_MODEL"] = "dg-mini"  # the small bundled model, as in all tests
