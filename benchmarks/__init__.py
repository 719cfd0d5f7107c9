"""Decoding speed: our modes beside transformers' own ``generate``; run with ``make bench``."""
