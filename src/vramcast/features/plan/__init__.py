"""How to get from a config to a long run: what to try first, what to check."""
