"""Scripts as they are, on a virtual card: how they are started, when they have shown enough, how they end."""
