"""Benchmarks and audit logs as self-contained pages. Needs matplotlib (the extra `bench`)."""
