"""Networks of job files that no library has."""

from __future__ import annotations

from torch import nn


def classifier(features: int, hidden: int, classes: int) -> nn.Module:
    """A head for features that a frozen backbone returns."""
    return nn.Sequential(nn.Linear(features, hidden), nn.GELU(), nn.Linear(hidden, classes))
