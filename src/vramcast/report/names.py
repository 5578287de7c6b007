"""Names that the program itself gives and a reader sees, so that every catalogue has them."""

from __future__ import annotations

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
TASKS = ("training", "inference")
NAMES = (*PARTS, *PHASES, *LIMITS, *SIZES, *TASKS)
