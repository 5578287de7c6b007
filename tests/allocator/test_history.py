"""The file of a recorded history, and a replay that finds what differs."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from vramcast.allocator import (
    AllocatorConf,
    CachingAllocator,
    Event,
    History,
    HistoryHeader,
    OutOfMemory,
    load_history,
    replay_history,
    save_history,
)
from vramcast.allocator.constants import MIB
from vramcast.allocator.history import from_trace
from vramcast.errors import UsageError

HEADER = HistoryHeader(torch="2.11.0", card="none", workload="a few calls")


class Recorder:
    """An allocator that keeps a trace as torch does."""

    def __init__(self, header: HistoryHeader = HEADER) -> None:
        self.header = header
        self.events: list[Event] = []
        self.allocator = CachingAllocator(conf=AllocatorConf.parse(header.conf), allowed_bytes=header.allowed_bytes)
        self.allocator.observe_segments(lambda event: self.events.append(Event(*event)))
        self.sizes: dict[int, int] = {}

    def malloc(self, size: int) -> int:
        try:
            address = self.allocator.malloc(size)
        except OutOfMemory as error:
            self.events.append(Event("oom", 0, error.rounded_bytes, 0))
            return 0
        self.sizes[address] = size
        self.events.append(Event("alloc", address, size, 0))
        return address

    def free(self, address: int) -> None:
        size = self.sizes.pop(address)
        self.events += [Event("free_requested", address, size, 0), Event("free_completed", address, size, 0)]
        self.allocator.free(address)

    def history(self) -> History:
        return History(replace(self.header, final_stats=self.allocator.memory_stats()), tuple(self.events))


def _some_calls(recorder: Recorder) -> None:
    blocks = [recorder.malloc(size * MIB) for size in (3, 30, 5, 60)]
    recorder.free(blocks[1])
    recorder.free(blocks[2])
    recorder.malloc(4 * MIB)
    recorder.malloc(80 * MIB)
    recorder.malloc(500)


def test_a_history_survives_its_file(tmp_path: Path) -> None:
    recorder = Recorder(replace(HEADER, conf="max_split_size_mb:64", allowed_bytes=150 * MIB, total_bytes=10**11))
    _some_calls(recorder)
    path = tmp_path / "h.json.gz"
    save_history(recorder.history(), path)
    assert load_history(path) == recorder.history()
    first = path.read_bytes()
    save_history(load_history(path), path)
    assert path.read_bytes() == first


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "h.json.gz"
    for content in (b"text", gzip.compress(b"{}"), gzip.compress(b"no json")):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"not an allocator history|not JSON"):
            load_history(path)


def test_torchs_own_trace_is_read() -> None:
    trace = [
        {"action": "segment_alloc", "addr": 0x7F00, "size": 2097152, "stream": 0, "time_us": 1},
        {"action": "alloc", "addr": 0x7F00, "size": 100, "stream": 0, "frames": []},
        {"action": "oom", "device_free": 123, "size": 512, "stream": 5},
        {"action": "annotate", "addr": 0x7F00, "size": 0, "stream": 0},
    ]
    assert from_trace(trace, HEADER).events == (
        Event("segment_alloc", 0x7F00, 2097152, 0),
        Event("alloc", 0x7F00, 100, 0),
        Event("oom", 0, 512, 5),
    )


def test_its_own_history_replays_exactly() -> None:
    recorder = Recorder(replace(HEADER, allowed_bytes=170 * MIB))
    _some_calls(recorder)
    report = replay_history(recorder.history())
    assert report.exact
    assert report.events == len(recorder.events)
    assert report.num_alloc_retries == 1
    assert report.ooms == 0
    assert report.peak_reserved_bytes == recorder.allocator.peak_reserved_bytes


def test_an_out_of_memory_is_replayed() -> None:
    recorder = Recorder(replace(HEADER, allowed_bytes=120 * MIB))
    _some_calls(recorder)
    report = replay_history(recorder.history())
    assert report.exact
    assert report.ooms == 1


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
@pytest.mark.parametrize("after", ["malloc of new memory", "malloc from the cache", "free", "nothing"])
def test_emptying_the_cache_is_inferred(conf: str, after: str) -> None:
    recorder = Recorder(replace(HEADER, conf=conf))
    kept = recorder.malloc(700)
    recorder.free(recorder.malloc(30 * MIB))
    recorder.allocator.empty_cache()
    if after == "malloc of new memory":
        recorder.malloc(20 * MIB)
    elif after == "malloc from the cache":
        recorder.malloc(800)
    elif after == "free":
        recorder.free(kept)
    report = replay_history(recorder.history())
    assert report.exact, report.mismatch
    assert report.empty_caches == 1


def _replace_event(history: History, action: str, **changes: int) -> tuple[int, History]:
    events = list(history.events)
    index = max(i for i, event in enumerate(events) if event.action == action)
    events[index] = events[index]._replace(**changes)
    return index, replace(history, events=tuple(events))


def test_a_segment_of_another_size_is_found() -> None:
    recorder = Recorder()
    _some_calls(recorder)
    index, changed = _replace_event(recorder.history(), "segment_alloc", size=4 * MIB)
    mismatch = replay_history(changed).mismatch
    assert mismatch is not None
    assert mismatch.index == index
    assert mismatch.what == "reserved memory differs"
    assert "4,194,304" in mismatch.recorded
    assert "2,097,152" in mismatch.replayed
    assert any(line.startswith(">") for line in mismatch.context)
    assert f"event {index}" in str(mismatch)


def test_a_block_elsewhere_is_found() -> None:
    recorder = Recorder()
    _some_calls(recorder)
    index, changed = _replace_event(recorder.history(), "alloc", address=0x1234)
    mismatch = replay_history(changed).mismatch
    assert mismatch is not None
    assert (mismatch.index, mismatch.what) == (index, "the block lies elsewhere")


def test_a_segment_that_was_not_needed_is_found() -> None:
    recorder = Recorder()
    _some_calls(recorder)
    history = recorder.history()
    first_free = next(i for i, event in enumerate(history.events) if event.action == "free_completed")
    alloc = next(i for i in range(first_free, len(history.events)) if history.events[i].action == "alloc")
    extra = Event("segment_alloc", 0x7F1234000000, 20 * MIB, 0)
    changed = replace(history, events=(*history.events[:alloc], extra, *history.events[alloc:]))
    mismatch = replay_history(changed).mismatch
    assert mismatch is not None
    assert (mismatch.index, mismatch.replayed) == (alloc, "nothing more")


def test_an_unknown_free_and_another_outcome_are_found() -> None:
    unknown = History(HEADER, (Event("free_requested", 5, 5, 0), Event("free_completed", 5, 5, 0)))
    mismatch = replay_history(unknown).mismatch
    assert mismatch is not None
    assert mismatch.what == "nothing to free"
    recorder = Recorder(replace(HEADER, allowed_bytes=120 * MIB))
    _some_calls(recorder)
    generous = replace(recorder.history(), header=replace(recorder.header, allowed_bytes=None))
    mismatch = replay_history(generous).mismatch
    assert mismatch is not None


def test_other_final_statistics_are_found() -> None:
    recorder = Recorder()
    _some_calls(recorder)
    history = recorder.history()
    stats = {**history.header.final_stats, "num_alloc_retries": 9}
    report = replay_history(replace(history, header=replace(history.header, final_stats=stats)))
    assert report.mismatch is None
    assert report.stat_differences == {"num_alloc_retries": (9, 0)}
    assert not report.exact
