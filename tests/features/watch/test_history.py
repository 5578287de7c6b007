"""Samples over time: peaks, warnings, bounded memory, and whose memory it is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.features.watch.samples import card, samples, training_run
from vramcast.base.units import GIB
from vramcast.errors import UsageError
from vramcast.features.watch.history import _MOST_POINTS, CardHistory, History
from vramcast.features.watch.process_tree import ProcessTree
from vramcast.features.watch.sample import Sample
from vramcast.features.watch.sampler import Sampler
from vramcast.gpus.survey import CardProblem, GpuProcess, LocalGpu, Survey


def test_the_peak_and_when_it_was() -> None:
    history = History()
    for sample in samples(training_run()):
        history.add(sample)
    assert history.cards[0].peak_bytes == int(20.5 * GIB)
    assert history.cards[0].peak_seconds == 55
    assert history.n_samples == len(training_run())


def test_a_warning_once_a_card_and_by_what_the_whole_card_holds() -> None:
    history = History(threshold=0.9)
    warnings = [history.add(sample) for sample in samples([1, 10, 10, 1, 10], others=12)]
    assert [len(one) for one in warnings] == [0, 1, 0, 0, 0]
    assert "card 0 is above 90%: 22.00 of 24.00 GiB used" in warnings[1][0]


def test_a_week_of_samples_is_kept_in_little_memory_with_its_peak() -> None:
    one, low, high = CardHistory(card(0)), card(3), card(20)
    for i in range(150_000):
        one.add(high if i == 123_457 else low, float(i))
    assert len(one.values) <= _MOST_POINTS
    assert max(one.values) == one.peak_bytes == 20 * GIB
    assert one.peak_seconds == 123_457
    assert one.values.index(20 * GIB) == 123_457 // one.per_value


def test_a_card_that_goes_and_comes_back() -> None:
    first, gone, back = samples([1, 2, 3])
    gone = Sample(time=gone.time, seconds=1, cards=(), problems=("card 0 (as nvidia-smi counts): lost",))
    history = History()
    history.add(first)
    history.add(gone)
    assert history.cards[0].lost and history.problems
    history.add(back)
    assert not history.cards[0].lost and not history.problems


def local(used_gib: float, *processes: GpuProcess) -> Survey:
    used = int(used_gib * GIB)
    one = LocalGpu(index=0, name="x", uuid="GPU-0", total_bytes=24 * GIB, used_bytes=used, free_bytes=24 * GIB - used,
                   processes=processes)  # fmt: skip
    return Survey(cards=(one,))


def test_what_the_driver_names_for_the_watched_processes() -> None:
    mine = os.getpid()
    looks = iter([local(1), local(4, GpuProcess(mine, "", 2 * GIB), GpuProcess(1 << 30, "", GIB)), local(1)])
    sampler = Sampler(lambda: next(looks))
    sampler.watch_processes(ProcessTree([mine]), started_here=False)
    (named,), (none,) = sampler.sample().cards, sampler.sample().cards
    assert (named.watched_bytes, named.basis, named.watched_pids) == (2 * GIB, "processes", (mine,))
    assert (none.watched_bytes, none.basis) == (0, "processes")


@pytest.mark.parametrize(("started_here", "basis", "watched"), [(True, "growth", 3), (False, "card", 4)])
def test_where_the_driver_names_no_process(started_here: bool, basis: str, watched: int) -> None:
    """In a container: a command that was started here is what the card has grown by; others cannot be told apart."""
    looks = iter([local(1), local(4)])
    sampler = Sampler(lambda: next(looks))
    sampler.watch_processes(ProcessTree([os.getpid()]), started_here=started_here)
    (one,) = sampler.sample().cards
    assert (one.basis, one.watched_bytes) == (basis, watched * GIB)


def test_the_whole_card_without_processes() -> None:
    (one,) = Sampler(lambda: local(4)).sample().cards
    assert (one.basis, one.watched_bytes) == ("card", 4 * GIB)


def test_no_card_and_no_such_card() -> None:
    with pytest.raises(UsageError, match="no NVIDIA GPU here to watch: the driver is asleep"):
        Sampler(lambda: Survey(why_none="the driver is asleep"))
    with pytest.raises(UsageError, match="--device 3: there is no such card here; the visible ones are 0"):
        Sampler(lambda: local(1), device=3)


def test_a_lost_card_is_in_the_sample() -> None:
    looks = iter([local(1), Survey(problems=(CardProblem(0, "lost"),), why_none="no card answers")])
    sample = Sampler(lambda: next(looks)).sample()
    assert sample.cards == () and sample.problems == ("card 0 (as nvidia-smi counts): lost",)


def test_a_tree_is_a_process_and_all_that_it_started() -> None:
    """A child stays in the tree when its parent has ended."""
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'])\n"
        "print(child.pid, flush=True)\n"
        "import time; time.sleep(0.3)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert parent.stdin is not None and parent.stdout is not None
    tree = ProcessTree([parent.pid])
    child = int(parent.stdout.readline())
    assert tree.members() == {parent.pid, child}
    assert not tree.has_ended()
    parent.wait()
    assert tree.has_ended()
    assert tree.members() == {child}
    parent.stdin.close()


def test_a_process_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="--pid 4194305"):
        ProcessTree([4194305])
