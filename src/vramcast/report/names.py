"""Names that the program itself gives and a reader sees, so that every catalogue has them."""

from __future__ import annotations

from vramcast.base.language import sentence
from vramcast.memory.account import CONTEXT, FRAGMENTATION, ROUNDING
from vramcast.timing.results import (
    ARITHMETIC,
    BACKWARD,
    BANDWIDTH,
    DATA,
    FORWARD,
    HOST,
    LAUNCHES,
    OPTIMIZER,
    SYNC,
)
from vramcast.trace.schema import KINDS

PARTS = (*KINDS, ROUNDING, FRAGMENTATION, CONTEXT)
PHASES = ("setup", DATA, FORWARD, BACKWARD, SYNC, OPTIMIZER)
LIMITS = (HOST, ARITHMETIC, BANDWIDTH, LAUNCHES)
SIZES = ("batch", "sequence", "height", "width", "frames")
TASKS = ("training", "inference", "offload")
WORDS = (
    *("fits", "look", "ok", "disk", "software", "(itself)", "none", "yes", "no", "total", "mostly", "used", "free"),
    *("measured", "predicted", "traced", "failed", "optimizer", "gradients", "weights", "parameters"),
    *("note", "loading", "diff", "allocated", "reserved", "time", "step", "peak", "card", "best", "front"),
    *("watch", "undisturbed"),
)
"""Single words in cells of tables. Others there are names of modules, files and cards, and stay as they are."""
PHRASES = ("{part} of {whole}",)
"""Of figures alone, put together wherever sentences are (base/language.py)."""
NAMES = (*PARTS, *PHASES, *LIMITS, *SIZES, *TASKS, *WORDS, *PHRASES)

_OWN = frozenset(NAMES)


def cell(text: str) -> str:
    """A cell of a table in the language in force."""
    stripped = text.strip()
    return sentence(text) if " " in stripped or stripped in _OWN else text
