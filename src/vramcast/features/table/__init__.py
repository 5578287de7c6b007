"""What fits, by batch and size, on several cards."""
