"""Workloads, other people's scripts, measurements on real cards, and the pages that compare predictions with them."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "lab" / "data"
"""What was measured and what is to be measured."""
