"""What a training run would allocate and free, as plain data that can be saved and asked again."""

from vramcast.trace.builder import LiveBlocks, TraceBuilder
from vramcast.trace.growth import Growth
from vramcast.trace.host import HostUse
from vramcast.trace.schema import EVENT_KINDS, KINDS, CardLimits, Note, StepTrace

__all__ = [
    "EVENT_KINDS", "KINDS", "CardLimits", "Growth", "HostUse", "LiveBlocks", "Note", "StepTrace", "TraceBuilder",
]  # fmt: skip
