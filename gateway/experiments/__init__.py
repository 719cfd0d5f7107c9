"""Experiments on the user's own models and prompts: what speculation does to texts, and what it saves."""
