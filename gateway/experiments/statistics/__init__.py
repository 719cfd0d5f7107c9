"""Tests and intervals as pure functions of numbers. Knows nothing of models, prompts or modes."""
