"""Policies: YAML in, one `Decision` per request out."""
