"""The blocks that are checkpointed: no subset that fits is faster, of all there are."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from vramcast.errors import VramcastError
from vramcast.features.advise.blocks import block_names, forward_seconds
from vramcast.features.advise.runs import Runs, Traced, Wish
from vramcast.features.advise.subset import Subsets, checkpointed
from vramcast.gpus import find_gpu
from vramcast.jobs.load import with_overrides
from vramcast.jobs.schema import Job
from vramcast.jobs.validation import make_job
from vramcast.memory.lengthening import lengthened
from vramcast.memory.replay import replay

CARD = find_gpu("rtx-4090")
IMAGES = {"shape": ["batch", 3, 64, 64]}
JOBS: dict[str, dict[str, Any]] = {
    "stack": {"inputs": {"x": {"shape": ["batch", 256]}, "labels": {"shape": ["batch"], "dtype": "int64", "below": 10}},
              "sizes": {"batch": 32768}},
    "conv_net": {"inputs": {"image": IMAGES, "labels": {"shape": ["batch"], "dtype": "int64", "below": 10}},
                 "sizes": {"batch": 128}, "optimizer": "sgd"},
    "u_net": {"inputs": {"image": IMAGES, "target": IMAGES}, "sizes": {"batch": 128}, "loss": "mse",
              "accumulation": 2},
}  # fmt: skip


def of(name: str) -> Job:
    return make_job(
        {"components": {"model": {"factory": f"tests.features.advise.networks:{name}"}}, **JOBS[name]}, name
    )


class Remembering(Runs):
    """What was traced once is not traced again, but counted."""

    def __init__(self) -> None:
        super().__init__(CARD, steps=2, workers=1, progress=lambda text: None)
        self._traced: dict[str, Traced | VramcastError] = {}

    def trace(self, wishes: Sequence[Wish]) -> list[Traced | VramcastError]:
        keys = [str(wish.job.checkpointing) for wish in wishes]
        new = {key: wish for key, wish in zip(keys, wishes, strict=True) if key not in self._traced}
        before = self.n_traced
        self._traced |= dict(zip(new, super().trace(list(new.values())), strict=True))
        self.n_traced = before + len(wishes)
        return [self._traced[key] for key in keys]


def traced(runs: Runs, job: Job) -> Traced:
    (one,) = runs.trace([Wish(job, "")])
    assert isinstance(one, Traced)
    return one


def fits(one: Traced, capacity_bytes: int) -> bool:
    trace = one.prediction.trace
    assert trace is not None
    return replay(lengthened(trace), None, capacity_bytes).completed


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.exhaustive if i else ()) for i, name in enumerate(JOBS)]
)
def test_as_good_as_trying_all_of_them(name: str) -> None:
    job = of(name)
    with Remembering() as runs:
        kept = traced(runs, job)
        names = block_names(kept, "model")
        assert len(names) == 5
        step = kept.time
        assert step is not None
        seconds = forward_seconds(step)
        every: dict[tuple[str, ...], tuple[Traced, float]] = {}
        for count in range(len(names) + 1):
            for chosen in itertools.combinations(names, count):
                one = traced(runs, with_overrides(job, {"checkpointing": checkpointed(chosen)})) if chosen else kept
                again = sum(
                    value for module, value in seconds.items()
                    if any(f"{module}.".startswith(f"model.{block}.") for block in chosen)
                )  # fmt: skip
                every[chosen] = (one, 1 + again / step.seconds)
        least, most = (every[chosen][0].prediction.peak_allocated_bytes for chosen in (tuple(names), ()))
        reached = 0
        for share in (0.3, 0.6, 0.95):
            capacity = round(least + share * (most - least))
            best = min((time for one, time in every.values() if fits(one, capacity)), default=None)
            if best is None:
                continue
            reached += 1
            before = runs.n_traced
            subset = Subsets(runs).best(
                job, lambda one, capacity=capacity: fits(one, capacity), capacity, kept, job.sizes["batch"]
            )  # fmt: skip
            assert subset is not None and fits(subset.traced, capacity)
            assert subset.time <= best * 1.02, (share, subset.names)
            assert runs.n_traced - before <= 26
            print(name, share, subset.names, subset.time, best, runs.n_traced - before)
        assert reached
