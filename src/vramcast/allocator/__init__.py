"""PyTorch's CUDA caching allocator without a GPU and without torch."""

from vramcast.allocator.addresses import AddressSpace
from vramcast.allocator.blocks import TieBreak
from vramcast.allocator.caching import CachingAllocator
from vramcast.allocator.conf import AllocatorConf
from vramcast.allocator.device import SegmentEvent
from vramcast.allocator.errors import AllocatorConfError, BackendNotModelled, OutOfMemory
from vramcast.allocator.history import Event, History, HistoryHeader, load_history, save_history
from vramcast.allocator.replay import ReplayReport, replay_history
from vramcast.allocator.snapshot import BlockInfo, Segment

__all__ = [
    "AddressSpace",
    "AllocatorConf",
    "AllocatorConfError",
    "BackendNotModelled",
    "BlockInfo",
    "CachingAllocator",
    "Event",
    "History",
    "HistoryHeader",
    "OutOfMemory",
    "ReplayReport",
    "Segment",
    "SegmentEvent",
    "TieBreak",
    "load_history",
    "replay_history",
    "save_history",
]
