"""The two queues on steps small enough to work out on paper."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.timing.queues import Latencies, TwoQueues, Work, alone, longest_seconds, steady

NOTHING = Latencies(launch_seconds=0.0, gap_seconds=0.0, wait_seconds=0.0)


def op(host: float, device: float, kernels: int = 1, waits: bool = False) -> Work:
    return Work(host, device, kernels, waits)


def test_a_slow_host_sets_the_pace() -> None:
    timeline, period = steady([op(2.0, 1.0)] * 10, NOTHING)
    assert period == pytest.approx(20.0)
    assert timeline.start[1] == pytest.approx(4.0)


def test_a_slow_card_sets_the_pace() -> None:
    _, period = steady([op(1.0, 3.0)] * 10, NOTHING)
    assert period == pytest.approx(30.0)


def test_the_host_runs_ahead_of_the_card_until_the_queue_is_full() -> None:
    free = TwoQueues(NOTHING, depth=100).run([op(1.0, 5.0)] * 10)
    held = TwoQueues(NOTHING, depth=2).run([op(1.0, 5.0)] * 10)
    assert free.host_end == pytest.approx(10.0)
    assert held.host_end == pytest.approx(41.0)  # the last launch waits for the seventh kernel's end, at 36 + 5
    assert free.device_end == held.device_end == pytest.approx(51.0)


def test_a_read_joins_host_and_card() -> None:
    works = [op(1.0, 5.0)] * 3 + [op(1.0, 0.5, waits=True)] + [op(1.0, 0.1)]
    timeline = alone(works, NOTHING)
    assert timeline.issue_end[3] == pytest.approx(16.5)
    assert timeline.start[4] == pytest.approx(17.5)


def test_views_cost_the_host_only() -> None:
    timeline = alone([op(1.0, 0.0, kernels=0)] * 4 + [op(1.0, 1.0)], NOTHING)
    assert timeline.device_end == pytest.approx(6.0)


WORKS = st.lists(
    st.builds(
        op,
        st.floats(0, 1e-3),
        st.floats(0, 1e-3),
        st.integers(0, 40),
        st.booleans(),
    ),
    min_size=1,
    max_size=60,
)


@given(WORKS)
def test_a_step_is_never_shorter_than_either_of_its_two_sides(works: list[Work]) -> None:
    latencies = Latencies(3e-6, 1e-6, 9e-6)
    timeline, period = steady(works, latencies)
    busy = sum(work.device_seconds for work in works if work.kernels)
    issuing = sum(work.host_seconds for work in works)
    assert period >= busy - 1e-9
    assert timeline.seconds >= issuing - 1e-9
    assert list(timeline.end) == sorted(timeline.end)
    assert list(timeline.issue_end) == sorted(timeline.issue_end)


@given(WORKS)
def test_no_step_takes_longer_than_its_parts_one_after_the_other(works: list[Work]) -> None:
    latencies = Latencies(launch_seconds=4e-6, gap_seconds=1e-6, wait_seconds=1e-5)
    longest = longest_seconds(works, latencies)
    assert alone(works, latencies).seconds <= longest * 1.000001 + 1e-12
    assert steady(works, latencies)[1] <= longest * 1.000001 + 1e-12
