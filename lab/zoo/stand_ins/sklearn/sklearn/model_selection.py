"""Imported by scripts whose run here never comes to use it."""

from __future__ import annotations

KFold = train_test_split = None
