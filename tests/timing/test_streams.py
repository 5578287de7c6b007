"""Collectives: what they take, and what of it a step waits for."""

from __future__ import annotations

import pytest

from vramcast.gpus import find_gpu
from vramcast.timing.collectives import (
    HOP_SECONDS,
    LINK_SHARES,
    NETWORK_HOP_SECONDS,
    NETWORK_SHARE,
    START_SECONDS,
    Collective,
)
from vramcast.timing.queues import Latencies, Work, alone
from vramcast.timing.streams import Communicate, Join, Record, StreamQueues, Switch, Wait, stream_work
from vramcast.trace.calls import COMMUNICATION, WAIT

H100 = find_gpu("h100")
NO_LATENCY = Latencies(0.0, 0.0, 0.0)


def kernel(seconds: float) -> Work:
    return Work(0.0, seconds, 1, False)


def test_all_gather_on_one_machine() -> None:
    """900 GB/s of NVLink in both directions, 450 in one, of which rings reach two thirds."""
    found = Collective("all_gather", 8 << 30, 8, 1).seconds(H100)
    sent = 7 / 8 * (8 << 30) / (450e9 * LINK_SHARES["all_gather"])
    assert found == pytest.approx(START_SECONDS + sent + 7 * HOP_SECONDS)


def test_all_reduce_goes_round_twice() -> None:
    once, twice = (Collective(kind, 1 << 30, 8, 1).seconds(H100) for kind in ("reduce_scatter", "all_reduce"))
    bytes_once, bytes_twice = once - START_SECONDS - 7 * HOP_SECONDS, twice - START_SECONDS - 14 * HOP_SECONDS
    share = LINK_SHARES["all_reduce"] / LINK_SHARES["reduce_scatter"]
    assert bytes_twice == pytest.approx(2 * bytes_once / share)


def test_between_machines_the_adapters_decide() -> None:
    """Sixteen machines, one card of each: 400 Gb/s. Four of each: 4 times that, less than NVLink."""
    one = Collective("all_gather", 1 << 30, 16, 16).seconds(H100)
    assert one == pytest.approx(START_SECONDS + 15 / 16 * (1 << 30) / (50e9 * NETWORK_SHARE) + 16 * NETWORK_HOP_SECONDS)
    four = Collective("all_gather", 1 << 30, 64, 16).seconds(H100)
    network = 63 / 64 * (1 << 30) / (200e9 * NETWORK_SHARE)
    assert four == pytest.approx(START_SECONDS + network + 48 * HOP_SECONDS + 16 * NETWORK_HOP_SECONDS)


def test_one_rank_sends_nothing() -> None:
    assert Collective("all_reduce", 1 << 30, 1, 1).seconds(H100) == 0.0


def test_a_collective_is_hidden_behind_kernels_until_the_stream_waits() -> None:
    """An all-gather of 3 s on stream 1, beside kernels of 2 s, of which one waits for it: 1 s is exposed."""
    works = [
        Switch(0.0, 0.0, 0, False, 1), Communicate(0.0, 3.0, 0, False, False), Record(0.0, 0.0, 0, False, (1, 1)),
        Switch(0.0, 0.0, 0, False, 0), kernel(2.0), Wait(0.0, 0.0, 0, False, 0, ((1, 1),)), kernel(4.0),
    ]  # fmt: skip
    timeline = StreamQueues(NO_LATENCY).run(works)
    assert list(timeline.end)[-3:] == [2.0, 3.0, 7.0]
    assert timeline.seconds == 7.0


def test_a_collective_on_the_default_stream_is_exposed_whole() -> None:
    timeline = StreamQueues(NO_LATENCY).run([kernel(1.0), Communicate(0.0, 3.0, 0, False, False), kernel(1.0)])
    assert list(timeline.end) == [1.0, 4.0, 5.0]


def test_sums_of_gradients_are_joined_at_the_end_of_the_backward_pass() -> None:
    works = [kernel(1.0), Communicate(0.0, 3.0, 0, False, True), kernel(1.0), Join(0.0, 0.0, 0, False), kernel(1.0)]
    assert list(StreamQueues(NO_LATENCY).run(works).end) == [1.0, 1.0, 2.0, 4.0, 5.0]


def test_without_collectives_both_models_agree() -> None:
    latencies = Latencies(5e-6, 1e-6, 1e-5)
    works = [Work(3e-6, 4e-6 * i, 1 + i % 3, i == 7) for i in range(1, 12)]
    assert list(StreamQueues(latencies).run(works).end) == pytest.approx(list(alone(works, latencies).end))


def test_marks_as_work() -> None:
    work = stream_work(COMMUNICATION, "all_gather 1073741824 8 1 own", Work(1e-6, 0.0, 0, False), H100)
    assert isinstance(work, Communicate)
    assert work.own_queue
    assert work.device_seconds == Collective("all_gather", 1 << 30, 8, 1).seconds(H100)
    waiting = stream_work(WAIT, "0 1:5 2:3", Work(0.0, 0.0, 0, False), H100)
    assert isinstance(waiting, Wait)
    assert waiting.events == ((1, 5), (2, 3))
