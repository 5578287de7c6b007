"""Imported by scripts whose run here never comes to use it."""
