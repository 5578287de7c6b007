"""One change and what it does."""
