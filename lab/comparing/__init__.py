"""Predictions beside measurements: errors of memory and time."""
