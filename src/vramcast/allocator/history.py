"""Recorded histories of the real allocator: a compact file, and a replay that compares after every event.

A history is what torch.cuda.memory._record_memory_history kept, from before the process's first allocation on. The
replay is given only what the program did (allocate, free, empty the cache) and where the driver put segments;
everything else it has to arrive at by itself.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from vramcast.base.errors import UsageError
from vramcast.base.input_files import LARGEST_RESULT_BYTES, read_json

FORMAT = "vramcast allocator history 1"

ACTIONS = {
    "alloc": "a",
    "free_requested": "r",
    "free_completed": "c",
    "segment_alloc": "S",
    "segment_free": "F",
    "segment_map": "M",
    "segment_unmap": "U",
    "oom": "o",
    "snapshot": "s",
}
"""torch's names of trace entries, and the letter each has in the file."""

TAKES = frozenset({"segment_alloc", "segment_map"})
GIVES_BACK = frozenset({"segment_free", "segment_unmap"})


class Event(NamedTuple):
    """One entry of torch's trace. An alloc's size is what was asked for; an oom's is rounded and it has no address."""

    action: str
    address: int
    size: int
    stream: int


@dataclass(frozen=True, kw_only=True)
class HistoryHeader:
    torch: str
    card: str
    workload: str
    """What was run, in words."""
    conf: str = ""
    """PYTORCH_ALLOC_CONF."""
    total_bytes: int | None = None
    """The card's memory, as torch reports it."""
    allowed_bytes: int | None = None
    """The limit that set_per_process_memory_fraction set before the first allocation."""
    capacity_bytes: int | None = None
    """What the driver could give, where it ran into that."""
    final_stats: dict[str, int] = field(default_factory=dict)
    """torch.cuda.memory_stats after the last event."""


@dataclass(frozen=True)
class History:
    header: HistoryHeader
    events: tuple[Event, ...]


def from_trace(entries: Iterable[Mapping[str, Any]], header: HistoryHeader) -> History:
    """A history from one device's list in torch.cuda.memory._snapshot()["device_traces"]."""
    events = [
        Event(
            action=entry["action"],
            # An oom carries the driver's free memory where others have an address.
            address=0 if entry["action"] == "oom" else entry["addr"],
            size=entry["size"],
            stream=entry["stream"],
        )
        for entry in entries
        if entry["action"] in ACTIONS
    ]
    return History(header, tuple(events))


def save_history(history: History, path: Path) -> None:
    """Write one gzip-compressed JSON file, column by column."""
    events = history.events
    addresses, address_index = _table(event.address for event in events)
    sizes, size_index = _table(event.size for event in events)
    streams, stream_index = _table(event.stream for event in events)
    data = {
        "format": FORMAT,
        "header": history.header.__dict__,
        "actions": "".join(ACTIONS[event.action] for event in events),
        "addresses": [after - before for before, after in zip([0, *addresses], addresses, strict=False)],
        "address_index": address_index,
        "sizes": sizes,
        "size_index": size_index,
        "streams": streams,
        "stream_index": stream_index,
    }
    text = json.dumps(data, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


def load_history(path: Path) -> History:
    """Read what save_history wrote."""
    data = read_json(path, LARGEST_RESULT_BYTES)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f"{path}: not an allocator history of the format '{FORMAT}'")
    addresses: list[int] = []
    for step in data["addresses"]:
        addresses.append(step + (addresses[-1] if addresses else 0))
    names = {letter: action for action, letter in ACTIONS.items()}
    columns = zip(data["actions"], data["address_index"], data["size_index"], data["stream_index"], strict=True)
    events = tuple(
        Event(names[letter], addresses[address], data["sizes"][size], data["streams"][stream])
        for letter, address, size, stream in columns
    )
    return History(HistoryHeader(**data["header"]), events)


def _table(values: Iterable[int]) -> tuple[list[int], list[int]]:
    """The distinct values in order, and each value's place among them: far smaller than the values themselves."""
    values = list(values)
    distinct = sorted(set(values))
    place = {value: i for i, value in enumerate(distinct)}
    return distinct, [place[value] for value in values]
