"""Imported by scripts whose run here never comes to use it."""

from __future__ import annotations

structural_similarity = None
