"""Verifiers: which draft tokens stand, and which token follows them."""
