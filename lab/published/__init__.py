"""Runs on many cards that others published: which of them state enough, a random draw, and predictions beside them."""
