"""Campaigns of hostile input: each module has `run(seconds, seed, most)`, which returns its figures.

`make soak` runs all of them; docs/benchmarks.md explains the figures.
"""
