"""Any batch from two traces: equal to a real trace to the byte where both run alike, and says so where not."""

from __future__ import annotations

import dataclasses
from array import array
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.tiny import JOB
from tests.samples import random_trace, transformer
from vramcast.card.libraries.cudnn_installed import open_cudnn
from vramcast.errors import StepRefused
from vramcast.gpus import GpuSpec, find_gpu
from vramcast.jobs.load import load_job, with_overrides
from vramcast.jobs.validation import make_job
from vramcast.memory.lengthening import lengthened
from vramcast.memory.replay import replay
from vramcast.memory.scaling import DifferentRuns, ScaledTrace, Skeleton, difference, last_true, same_sizes
from vramcast.prediction.predict import predict
from vramcast.prediction.scaling import Batches
from vramcast.prediction.traced_sizes import NO_LIMIT
from vramcast.prediction.tracing import trace_job
from vramcast.trace import StepTrace

FOLDERS = Path(__file__).parents[2] / "jobs" / "folders"
CARD = find_gpu("rtx-4090")
CONV: dict[str, Any] = {
    "components": {"model": {"factory": "tests.jobs.tiny:conv_net"}},
    "inputs": {
        "image": {"shape": ["batch", 3, "height", "width"]},
        "target": {"shape": ["batch", 3, "height", "width"]},
    },
    "sizes": {"batch": 4, "height": 64, "width": 64},
    "loss": "mse",
}
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "mixer": (JOB, {}),
    "mixer, checkpointed": (JOB, {"checkpointing": "all", "precision": "bf16"}),
    "convolutions": (CONV, {}),
    "bert": (str(FOLDERS / "bert-base"), {"sizes.sequence": 64, "components.model.config": {"num_hidden_layers": 2}}),
    "vit": (str(FOLDERS / "vit-base"), {"components.model.config": {"num_hidden_layers": 2}}),
}


@cache
def trace(model: str, batch: int) -> StepTrace:
    source, changes = MODELS[model]
    if isinstance(source, str):
        pytest.importorskip("transformers")
    job = load_job(source).job if isinstance(source, str) else make_job(source, "job")
    return trace_job(with_overrides(job, {**changes, "sizes.batch": batch}), CARD, steps=2, limit_bytes=NO_LIMIT).trace


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("batch", [5, 16, 33])
def test_a_worked_out_trace_is_the_real_one(model: str, batch: int) -> None:
    scaled = ScaledTrace({2: trace(model, 2), 3: trace(model, 3)})
    real, worked_out = trace(model, batch), scaled.at(batch)
    assert difference(Skeleton.of(worked_out), Skeleton.of(real)) is None
    assert same_sizes(worked_out, real)


def test_the_mixer_is_equal_with_workspaces_too() -> None:
    scaled = ScaledTrace({2: trace("mixer", 2), 3: trace("mixer", 3)})
    assert scaled.exact
    for batch in (1, 5, 16, 33):
        assert scaled.at(batch).requested_bytes == trace("mixer", batch).requested_bytes
        assert replay(scaled.at(batch)).reserved_bytes == replay(trace("mixer", batch)).reserved_bytes


def test_the_two_traces_themselves_come_back() -> None:
    scaled = ScaledTrace({2: trace("mixer", 2), 3: trace("mixer", 3)})
    assert scaled.at(2) is trace("mixer", 2) and scaled.at(3) is trace("mixer", 3)


def test_other_events_are_named() -> None:
    plain, checkpointed = trace("mixer", 2), trace("mixer, checkpointed", 3)
    with pytest.raises(DifferentRuns, match=r"sizes 2 and 3 run differently: event .* differs"):
        ScaledTrace({2: plain, 3: checkpointed})
    assert not same_sizes(plain, checkpointed)


def test_a_batch_of_one_that_runs_otherwise_is_told() -> None:
    found = difference(Skeleton.of(trace("bert", 1)), Skeleton.of(trace("bert", 2)))
    assert found is not None and "near aten." in found


def test_sizes_off_the_line_are_told() -> None:
    real = trace("mixer", 5)
    other = array("q", real.requested_bytes)
    other[-1] += 512
    assert not same_sizes(real, dataclasses.replace(real, requested_bytes=other))


@given(st.integers(1, 1000), st.integers(1, 400), st.integers(1, 1000))
def test_the_last_that_holds(limit: int, below: int, guess: int) -> None:
    found = last_true(lambda size: size <= limit, min(guess, max(1, below - 1)), max(2, below))
    assert found == min(limit, max(2, below) - 1)


@pytest.mark.parametrize("seed", range(5))
def test_a_line_through_two_scales(seed: int) -> None:
    """A made-up trace whose sizes are all multiples of the batch."""
    base = random_trace(seed)

    def at(batch: int) -> StepTrace:
        return dataclasses.replace(base, requested_bytes=array("q", [size * batch for size in base.requested_bytes]))

    scaled = ScaledTrace({2: at(2), 5: at(5)})
    assert scaled.at(9).requested_bytes == at(9).requested_bytes


@pytest.mark.parametrize("memory", ["1GiB", pytest.param("3GiB", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("model", ["mixer", "convolutions"])
def test_the_largest_batch_fits_and_one_more_does_not(model: str, memory: str) -> None:
    if model == "convolutions" and open_cudnn() is None:
        pytest.skip("fitted workspaces jump from one batch to the next: a larger one may fit again")
    source, changes = MODELS[model]
    job = with_overrides(make_job(source, "job"), changes)
    gpu = dataclasses.replace(CARD, total_memory_bytes=GpuSpec.from_memory("24GiB").context_bytes + _bytes(memory))
    batches = Batches(job, steps=2)
    found = batches.largest(gpu)
    assert found.batch > 3 and found.traces <= 40
    for batch, fits in ((found.batch, True), (found.batch + 1, False)):
        assert predict(batches.at(batch), gpu, steps=2).fits is fits
    assert found.device_bytes == predict(batches.at(found.batch), gpu, steps=2).device_bytes


def _bytes(text: str) -> int:
    from vramcast.base.units import parse_bytes

    return parse_bytes(text)


def test_nothing_fits_and_everything_fits() -> None:
    job = make_job(
        JOB | {"components": {"model": {"factory": "tests.jobs.tiny:mixer", "arguments": {"width": 4096}}}}, "j"
    )
    small = dataclasses.replace(CARD, total_memory_bytes=CARD.context_bytes + 600 * 2**20)
    found = Batches(job, steps=2).largest(small)
    assert found.batch == 0 and found.device_bytes > found.limit_bytes
    assert Batches(make_job(JOB, "j"), steps=2).largest(CARD, most=7).batch == 7


def test_where_batches_run_differently_real_traces_are_bisected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batches, "_fit", lambda self, gpu, fitting: None)
    small = dataclasses.replace(CARD, total_memory_bytes=CARD.context_bytes + 2**30)
    plain = Batches(make_job(JOB, "j"), steps=2).largest(small, most=50_000)
    monkeypatch.undo()
    batches = Batches(make_job(JOB, "j"), steps=2)
    assert not plain.worked_out
    assert batches.needs(plain.batch, small)[0] and not batches.needs(plain.batch + 1, small)[0]
    # A little more may fit again above one that does not: fragmentation is not monotonic.
    assert plain.batch == pytest.approx(batches.largest(small, most=50_000).batch, rel=0.05)


def test_cards_with_the_same_kernels_share_traces() -> None:
    batches = Batches(make_job(JOB, "j"), steps=2)
    batches.largest(find_gpu("24GiB"), most=100)
    before = batches.n_traced
    batches.largest(find_gpu("48GiB"), most=100)
    assert batches.n_traced == before


def test_shapes_survive_lengthening() -> None:
    longer = lengthened(transformer())
    assert len(longer.shape) == longer.n_blocks


def test_what_a_kernel_refuses_is_not_the_largest_batch() -> None:
    job = make_job(
        {
            "step": {"factory": "tests.jobs.tiny:enlarging_step", "arguments": {"channels": 64, "size": 1024}},
            "sizes": {"batch": 4},
        },
        "job",
    )
    card = dataclasses.replace(find_gpu("h200"), total_memory_bytes=2**42)
    assert Batches(job, steps=2).largest(card).batch == 31, "32 images have as many elements as an int cannot count"
    with pytest.raises(StepRefused, match="less than INT_MAX elements"):
        trace_job(with_overrides(job, {"sizes.batch": 32}), card, steps=1)
