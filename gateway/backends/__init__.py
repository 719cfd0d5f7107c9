"""Backends: where answers are generated."""
