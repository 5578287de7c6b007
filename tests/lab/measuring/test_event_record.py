"""A made-up history, and what is kept of it."""

from __future__ import annotations

from vramcast.features.measure.event_record import compact_events


def test_frees_name_their_allocation_and_segments_their_place() -> None:
    entries = [
        {"action": "segment_alloc", "addr": 1000, "size": 2097152},
        {"action": "alloc", "addr": 1000, "size": 300},
        {"action": "alloc", "addr": 1512, "size": 40},
        {"action": "free_requested", "addr": 1000, "size": 300},
        {"action": "free_completed", "addr": 1000, "size": 300},
        {"action": "alloc", "addr": 1000, "size": 7},
        {"action": "free_requested", "addr": 1512, "size": 40},
        {"action": "free_requested", "addr": 1000, "size": 7},
        {"action": "segment_free", "addr": 1000, "size": 2097152},
        {"action": "snapshot", "addr": 0, "size": 0},
    ]
    events, segments = compact_events(entries)
    assert events == [300, 40, -1, 7, -2, -3]
    assert segments == [[0, 2097152, 1000], [6, -2097152, 1000]]
    sizes = [event for event in events if event >= 0]
    assert sum(sizes) - sum(sizes[-event - 1] for event in events if event < 0) == 0
