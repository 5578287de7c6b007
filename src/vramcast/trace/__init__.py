"""What a training run would allocate and free, as plain data that can be saved and asked again."""

from vramcast.trace.builder import LiveBlocks, TraceBuilder
from vramcast.trace.growth import Growth
from vramcast.trace.host import HostUse
from vramcast.trace.schema import COMPUTED_VALUES, EVENT_KINDS, KINDS, UNKNOWN_SIZE, CardLimits, Note, StepTrace

__all__ = [
    "COMPUTED_VALUES", "EVENT_KINDS", "KINDS", "UNKNOWN_SIZE", "CardLimits", "Growth", "HostUse", "LiveBlocks", "Note",
    "StepTrace", "TraceBuilder",
]  # fmt: skip
