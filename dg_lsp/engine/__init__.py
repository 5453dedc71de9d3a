"""The engine: one request in, ranked candidates out. Imports no model runtime."""
