"""Change what a user's own config says, in its own text: order and comments stay as they are."""
