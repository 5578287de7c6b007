"""A check in front of training, and a watch while it runs."""
