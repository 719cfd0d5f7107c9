"""Draftgate: an OpenAI-compatible gateway that chooses, by policy, how each answer is decoded."""
