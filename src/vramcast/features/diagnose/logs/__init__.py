"""Training logs: what they say about the time of a step, what they leave out, and what would help. No torch."""
