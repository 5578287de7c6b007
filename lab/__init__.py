"""Experiments around vramcast that are no part of the package."""
