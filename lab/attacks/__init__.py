"""Hostile inputs, and signals at random moments."""
