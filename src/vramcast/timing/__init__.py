"""How long a step takes: the time of each operator on a card, and what comes of them together."""
