"""The measuring loop with CUDA's counters replaced by made-up ones that follow CPU tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from vramcast.base.factories import check_arguments, load_factory
from vramcast.errors import UsageError
from vramcast.features.measure import real_run


class FakeCard:
    """Counters that a step moves by hand, and events whose clock is a count."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allocated = self.peak = self.clock = 0
        card = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                self.at = 0

            def record(self) -> None:
                card.clock += 1
                self.at = card.clock

            def elapsed_time(self, other: Any) -> float:
                return float(other.at - self.at)

        fakes: dict[str, Any] = {
            "Event": Event, "init": lambda: None, "synchronize": lambda: None, "is_available": lambda: True,
            "current_device": lambda: 0, "mem_get_info": lambda: (10, 20), "reset_peak_memory_stats": self.reset,
            "memory_stats": lambda: {"num_alloc_retries": 0, "num_ooms": 0},
        }  # fmt: skip
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(torch._C, "_cuda_memoryStats", self.stats, raising=False)
        monkeypatch.setattr(real_run, "environment", dict)
        monkeypatch.setattr(real_run, "process_used_bytes", lambda: None)
        monkeypatch.setattr(real_run, "device_used_bytes", lambda: None)

    def stats(self, device: int) -> dict[str, Any]:
        one = {"all": {"peak": self.peak, "current": self.allocated}}
        return {"allocated_bytes": one, "reserved_bytes": one, "requested_bytes": one}

    def reset(self) -> None:
        self.peak = self.allocated

    def move(self, size: int) -> None:
        self.allocated += size
        self.peak = max(self.peak, self.allocated)


def test_peaks_and_times_by_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeCard(monkeypatch)

    def factory(*, weights: int = 100) -> Any:
        card.move(weights + 50)
        card.move(-50)
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.weight.register_hook(lambda gradient: (card.move(30), card.move(-30))[0])
        state = SimpleNamespace(made=False)

        def step() -> None:
            card.move(20)
            model(torch.ones(1, 2)).sum().backward()
            card.move(-20)
            optimizer.step()
            if not state.made:
                card.move(7)
                state.made = True

        return step

    run = real_run.measure_factory(factory, {"weights": 200}, steps=3, warmup_steps=1)
    assert run.setup.peak_allocated_bytes == 250
    assert run.setup.allocated_bytes == 200
    assert [s.peak_allocated_bytes for s in run.steps] == [250, 257, 257]
    assert run.peak_allocated_bytes == 257
    second = run.steps[1]
    assert second.phase_peaks["forward"].peak_allocated_bytes == 227
    assert second.phase_peaks["backward"].peak_allocated_bytes == 257
    assert second.allocated_after_bytes == 207
    # Six events a step at unit distance: one forward, one backward, three optimizer stretches.
    assert second.phase_seconds == pytest.approx({"forward": 1e-3, "backward": 1e-3, "optimizer": 3e-3})
    assert second.device_seconds == pytest.approx(sum(second.phase_seconds.values()))
    assert run.step_seconds == pytest.approx(5e-3)
    assert run.to_json()["steps"][0]["phase_peaks"]["backward"]["peak_allocated_bytes"] == 250


def test_only_the_timed_part_is_exclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCard(monkeypatch)
    order: list[str] = []

    class Lock:
        def __enter__(self) -> None:
            order.append("lock")

        def __exit__(self, *error: Any) -> None:
            order.append("unlock")

    def factory() -> Any:
        order.append("build")
        return lambda: order.append("step")

    run = real_run.measure_factory(factory, steps=2, warmup_steps=1, free_running_steps=1, exclusive=Lock)
    assert order == ["build", "lock", "step", "step", "step", "unlock"]
    assert run.free_running_step_seconds is not None


def test_the_host_is_watched_after_memory_was_read_and_before_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeCard(monkeypatch)
    order: list[str] = []

    def factory() -> Any:
        card.move(100)

        def step() -> None:
            order.append("step")
            card.move(10 * len(order))
            card.move(-10 * len(order))

        return step

    run = real_run.measure_factory(
        factory, steps=2, warmup_steps=1, watch_host=True, then=lambda *_: order.append("then")
    )
    tried = len(run.watched["steps"])
    assert order == ["step"] * (2 + tried) + ["then"] and tried >= 8
    assert run.peak_allocated_bytes == 120, "what the watched steps took is not in it"
    assert all(len(step["loops"]) == 4 and step["phase_seconds"] for step in run.watched["steps"])
    assert real_run.measure_factory(factory, steps=2, warmup_steps=1).watched == {}


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="needs a GPU"):
        real_run.measure_factory(lambda: None)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gpt2", "module:function"),
        ("no.such.module:f", "cannot import"),
        ("lab.workloads.gan:nothing", "no function nothing"),
        ("missing.py:f", "no such file"),
    ],
)
def test_a_wrong_factory_name_is_explained(spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_factory(spec)


def test_a_wrong_argument_is_named() -> None:
    factory = load_factory("lab.workloads.gan:dcgan")
    with pytest.raises(UsageError, match="no argument 'batches'"):
        check_arguments(factory, {"batches": 3})
