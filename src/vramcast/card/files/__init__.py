"""Checkpoints of tensors without data: as large as they say, and holding nothing."""
