"""Decoding engine: standard, speculative and hybrid rows in one continuous batch."""
