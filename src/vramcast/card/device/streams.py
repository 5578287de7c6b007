"""Streams and events of the virtual card: no time passes, but what waits for what is kept.

Memory that a second stream has used (`record_stream`) is free for reuse once that stream is past the free. PyTorch
finds out by events, which it looks at before every allocation. Here an event has happened when the host has waited for
it, or for anything that came after it: that is the latest. Whether it happens before is for memory/awaited_frees.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from vramcast.allocator.card_streams import stream_on
from vramcast.card.device.one_card import check_ordinal
from vramcast.trace.calls import RECORD, WAIT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

POOL_SIZE = 32
"""torch.cuda.Stream() hands out this many streams of each priority, then starts again (kStreamsPerPool)."""

Clock = dict[int, int]
"""By stream: how many of its events have happened."""


class Timeline:
    """Which events of the streams have happened, as far as the host can know."""

    def __init__(self) -> None:
        self._recorded: Clock = {}
        self._behind: dict[int, Clock] = {}
        """What has happened once all that a stream was given is done."""
        self._happened: Clock = {}
        self._handed_out: dict[int, int] = {}
        self.place_of_card: Callable[[int], int] = lambda card: 0
        """Where a card of the machine stands among those that the process uses."""
        self.note: Callable[[str, str], None] | None = None
        """Told of each event that is recorded or waited for, where the time of a step depends on it."""

    def next_stream(self, priority: int) -> int:
        """The number of the next stream from the pool of that priority; 0 is the default stream."""
        pool = 1 if priority < 0 else 0
        count = self._handed_out.get(pool, 0)
        self._handed_out[pool] = count + 1
        return 1 + pool * POOL_SIZE + count % POOL_SIZE

    def record(self, stream: int) -> Clock:
        """An event at the end of what the stream was given."""
        count = self._recorded[stream] = self._recorded.get(stream, 0) + 1
        behind = self._behind.setdefault(stream, {})
        behind[stream] = count
        if self.note is not None:
            self.note(RECORD, f"{stream} {count}")
        return dict(behind)

    def wait(self, stream: int, event: Mapping[int, int]) -> None:
        """What the stream is given from now on runs after the event."""
        _join(self._behind.setdefault(stream, {}), event)
        if self.note is not None and event:
            self.note(WAIT, " ".join((str(stream), *(f"{other}:{number}" for other, number in event.items()))))

    def finish(self, event: Mapping[int, int]) -> None:
        """The host has waited for the event."""
        _join(self._happened, event)

    def finish_stream(self, stream: int) -> None:
        """The host has waited for all that the stream was given."""
        self.finish(self.record(stream))

    def finish_all(self) -> None:
        """The host has waited for the card."""
        _join(self._happened, self._recorded)

    def has_happened(self, stream: int, number: int) -> bool:
        return self._happened.get(stream, 0) >= number


def _join(clock: Clock, other: Mapping[int, int]) -> None:
    for stream, count in other.items():
        if count > clock.get(stream, 0):
            clock[stream] = count


_timeline = Timeline()


def begin() -> Timeline:
    """A card starts with no streams handed out."""
    global _timeline
    _timeline = Timeline()
    return _timeline


class Stream:
    """A stream of the virtual card; work on it allocates from its own pool."""

    def __init__(self, device: Any = None, priority: int = 0, stream_id: int | None = None, **_: Any) -> None:
        self.device_index = check_ordinal(device)
        if stream_id is None:
            stream_id = stream_on(_timeline.place_of_card(self.device_index), _timeline.next_stream(priority))
        self.stream_id = self.cuda_stream = stream_id
        self.device = torch.device("cuda", self.device_index)
        self.device_type = 1
        self.priority = priority
        self._before: list[Any] = []

    def synchronize(self) -> None:
        _timeline.finish_stream(self.stream_id)

    def wait_stream(self, stream: Any) -> None:
        _timeline.wait(self.stream_id, _timeline.record(stream.stream_id))

    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def record_event(self, event: Any = None) -> Event:
        event = event or Event()
        event.record(self)
        return event  # type: ignore[no-any-return]

    def query(self) -> bool:
        self.synchronize()  # a program that asks goes on asking until it is so
        return True

    def is_capturing(self) -> bool:
        cuda: Any = torch.cuda
        return bool(cuda.current_stream() == self and cuda.is_current_stream_capturing())

    def __enter__(self) -> Stream:
        cuda: Any = torch.cuda
        self._before.append(cuda.current_stream())
        cuda.set_stream(self)
        return self

    def __exit__(self, *exc: Any) -> None:
        torch.cuda.set_stream(self._before.pop())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)


class ExternalStream(Stream):
    """A stream by its address, as another library names it: one of ours, or one that nobody else uses."""

    def __init__(self, stream_ptr: int, device: Any = None, **_: Any) -> None:
        super().__init__(device, stream_id=int(stream_ptr))


class Event:
    """An event of the virtual card; one that was never recorded has happened."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, **_: Any):
        self.enable_timing = enable_timing
        self._clock: Clock = {}

    def record(self, stream: Any = None) -> None:
        chosen: Any = stream or torch.cuda.current_stream()
        self._clock = _timeline.record(chosen.stream_id)

    def wait(self, stream: Any = None) -> None:
        chosen: Any = stream or torch.cuda.current_stream()
        _timeline.wait(chosen.stream_id, self._clock)

    def synchronize(self) -> None:
        _timeline.finish(self._clock)

    def query(self) -> bool:
        self.synchronize()
        return True

    def elapsed_time(self, end_event: Any) -> float:
        return 1.0
