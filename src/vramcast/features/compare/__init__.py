"""Results and scenarios side by side."""
