"""Draft sources: cheap proposers of the next tokens."""
