"""The time of a data loader by itself, with a clock that only its dataset moves."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from vramcast.features.measure.loading import Loading, seconds_per_batch, time_loader
from vramcast.features.measure.phases import PhaseWatcher
from vramcast.jobs.validation import make_job
from vramcast.report.measurement import loading_lines


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow(Dataset[torch.Tensor]):
    def __init__(self, clock: Clock, size: int = 100) -> None:
        self.clock, self.size = clock, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= self.size:
            raise IndexError
        self.clock.now += 0.01
        return torch.zeros(2)


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(torch.zeros(20, 2))


def timed(loader: DataLoader[torch.Tensor], clock: Clock, step_seconds: float = 0.015, **how: float) -> Loading:
    found = time_loader(loader, step_seconds=step_seconds, clock=clock, **how)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_the_loop_that_loads_itself() -> None:
    clock = Clock()
    found = timed(DataLoader(Slow(clock), batch_size=4), clock)
    assert found.seconds_per_batch == pytest.approx(0.04) and found.seconds_per_sample == pytest.approx(0.01)
    assert (found.batch, found.samples, found.workers, found.batches) == (4, 100, 0, 24)
    assert found.workers_needed == 3
    first, second, paste = loading_lines(found.to_json(), 0.015)
    assert first == "data loading alone, by the loop itself: 40.0 ms a batch, 10.0 ms of one process a sample"
    assert second == "each step waits for it; 3 workers keep up"
    assert paste == "in a job: dataset: {size: 100, seconds_per_sample: 0.01, workers: 0}"
    make_job({"components": {"model": {"transformers": "x"}},
              "dataset": {"size": 100, "seconds_per_sample": 0.01, "workers": 0}}, "job")  # fmt: skip


def test_not_longer_than_it_may_take() -> None:
    clock = Clock()
    assert timed(DataLoader(Slow(clock, 10_000)), clock, most_seconds=0.1).batches < 12
    assert time_loader(DataLoader(Slow(clock, 1)), step_seconds=1.0, clock=clock) is None


def test_workers_deliver_in_rounds() -> None:
    """Two workers of a second each: two batches at once, every second."""
    assert seconds_per_batch([1, 1, 2, 2, 3, 3, 4], 2) == pytest.approx(0.5)
    assert seconds_per_batch([1, 1, 2, 2, 3, 3], 2) == pytest.approx(0.5)
    assert seconds_per_batch([1, 1], 2) is None and seconds_per_batch([], 0) is None


def test_real_workers_and_a_stream_without_a_length() -> None:
    found = time_loader(DataLoader(Stream(), batch_size=2, num_workers=1), step_seconds=1e9)
    assert found is not None and found.workers == 1 and found.samples is None and found.workers_needed == 1
    lines = loading_lines(found.to_json(), 1e9)
    assert len(lines) == 2 and lines[1].startswith("hidden behind the step")


def test_loading_that_is_slower_than_the_step() -> None:
    loading = Loading(
        seconds_per_batch=0.2, batches=8, workers=2, batch=8, samples=80, seconds_per_sample=0.05,
        seconds_per_step=0.2, workers_needed=4,
    )  # fmt: skip
    assert (
        loading_lines(loading.to_json(), 0.1)[1]
        == "slower than the step, 100.0 ms, which waits for it; 4 workers keep up"
    )


def test_the_watcher_knows_the_loader_and_the_batches_of_a_step() -> None:
    loader: DataLoader[torch.Tensor] = DataLoader(torch.zeros(12, 2), batch_size=2)  # type: ignore[arg-type]
    watcher = PhaseWatcher(lambda phase: None)
    original = DataLoader.__iter__
    with watcher.watching():
        batches = iter(loader)
        next(batches)
        assert watcher.loader is None
        watcher.begin_step()
        next(batches)
        next(batches)
        watcher.end_step()
        assert watcher.loader is loader and watcher.batches == 2
        list(DataLoader(list(range(2))))  # type: ignore[arg-type]
        assert watcher.loader is loader
    assert DataLoader.__iter__ is original
