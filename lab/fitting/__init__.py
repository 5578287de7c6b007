"""Cost models and kernel choices fitted to measurements."""
