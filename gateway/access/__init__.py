"""Who asks and how much: API keys in their stores, tokens of an identity provider, and limits."""
