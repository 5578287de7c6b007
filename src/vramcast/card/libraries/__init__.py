"""Memory that library calls take inside operators, as pure functions of shapes (no torch)."""
