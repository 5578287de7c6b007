"""Results as text and as JSON. Nothing is computed here: reports only read."""
