"""The largest batch, sequence, resolution and clip: each fits, and the next does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import vramcast
from tests.jobs.tiny import JOB as TINY
from vramcast.cli.main import main
from vramcast.gpus import GpuSpec, find_gpu
from vramcast.jobs.load import load_job, with_overrides
from vramcast.jobs.schema import Job
from vramcast.jobs.validation import make_job
from vramcast.memory.scaling import ScaledTrace, same_sizes
from vramcast.prediction.axes import axes
from vramcast.prediction.scaling import Sizes
from vramcast.prediction.traced_sizes import NO_LIMIT
from vramcast.prediction.tracing import trace_job

FOLDERS = Path(__file__).parents[2] / "jobs" / "folders"
CARD = find_gpu("rtx-4090")
VIDEO: dict[str, Any] = {
    "components": {"model": {"factory": "tests.features.advise.networks:video"}},
    "inputs": {"x": {"shape": ["batch", 3, "frames", "height", "width"]}},
    "sizes": {"batch": 1, "frames": 9, "height": 64, "width": 96},
    "loss": "mean",
}


def bert(**changes: Any) -> Job:
    pytest.importorskip("transformers")
    small = {"num_hidden_layers": 2, "attn_implementation": "eager", "max_position_embeddings": 4096}
    job = load_job(str(FOLDERS / "bert-base")).job
    return with_overrides(job, {"components.model.config": small, "sizes.batch": 4, "sizes.sequence": 256, **changes})


def video() -> Job:
    return make_job(VIDEO, "video")


@pytest.mark.parametrize(
    ("sizes", "axis", "number", "expected"),
    [
        ({"batch": 6}, "batch", 7, {"batch": 7}),
        ({"sequence": 1024}, "sequence", 17, {"sequence": 1088}),
        ({"sequence": 1000}, "sequence", 2, {"sequence": 16}),
        ({"height": 256, "width": 256}, "resolution", 5, {"height": 320, "width": 320}),
        ({"height": 480, "width": 832}, "resolution", 16, {"height": 512, "width": 896}),
        ({"height": 518, "width": 518}, "resolution", 38, {"height": 532, "width": 532}),
        ({"frames": 49}, "frames", 13, {"frames": 53}),
        ({"frames": 16}, "frames", 9, {"frames": 18}),
    ],
)
def test_steps_that_a_model_takes(sizes: dict[str, int], axis: str, number: int, expected: dict[str, int]) -> None:
    one = axes(make_job({**TINY, "sizes": sizes}, "job"))[axis]
    assert one.sizes(number) == expected
    assert one.sizes(one.asked) == {name: sizes[name] for name in expected}


def test_no_longer_than_the_model_takes() -> None:
    job = with_overrides(load_job(str(FOLDERS / "bert-base")).job, {"sizes.sequence": 128})
    assert axes(job)["sequence"].most == 512 // 64


@pytest.mark.slow
@pytest.mark.parametrize(("job", "axis", "known", "other"), [
    (bert, "sequence", (2, 3, 4), 9), (video, "frames", (2, 3, 4), 7), (video, "resolution", (2, 3, 4), 6),
])  # fmt: skip
def test_a_size_from_three_others_is_the_real_one(job: Any, axis: str, known: tuple[int, ...], other: int) -> None:
    base = job()
    one = axes(base)[axis]

    def trace(number: int) -> Any:
        changed = with_overrides(base, one.changes(base, number))
        return trace_job(changed, CARD, limit_bytes=NO_LIMIT).trace

    scaled = ScaledTrace({one.measure(number): trace(number) for number in known})
    assert same_sizes(scaled.at(one.measure(other)), trace(other))


@pytest.mark.parametrize(("job", "axis", "memory"), [(bert, "sequence", "4GiB"), (video, "frames", "1GiB")])
def test_it_fits_and_the_next_does_not(job: Any, axis: str, memory: str) -> None:
    base, gpu = job(), GpuSpec.from_memory(memory)
    sizes = Sizes(base, axes(base)[axis])
    found = sizes.largest(gpu, traced_beyond=True)
    assert found.number > sizes.axis.asked and not found.worked_out and found.traces <= 14
    for number, fits in ((found.number, True), (found.number + 1, False)):
        assert vramcast.predict(sizes.at(number), gpu).fits is fits
    assert vramcast.predict(sizes.at(found.number), gpu).device_bytes == found.device_bytes


@pytest.mark.parametrize("limit", [{"memory": "600MB"}, {"fraction": 0.004}], ids=["memory", "fraction"])
def test_what_pytorch_may_reserve_is_the_limit_of_the_largest_batch(limit: dict[str, Any]) -> None:
    job = {**VIDEO, "target": {"gpu": "h200", **limit}}
    (batch,) = vramcast.advise(job).advice.largest
    allowed = 600_000_000 if "memory" in limit else int(0.004 * find_gpu("h200").total_memory_bytes)
    fits, too_large = (
        vramcast.predict({**job, "sizes": {**job["sizes"], "batch": number}})
        for number in (batch.sizes["batch"], batch.sizes["batch"] + 1)
    )
    assert fits.fits and fits.peak_reserved_bytes <= allowed
    assert not too_large.fits


def test_advise_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    job = {**VIDEO, "sizes": {**VIDEO["sizes"], "batch": 2}}
    found = vramcast.advise(job, memory="1GiB", largest=True)
    largest = {size.axis: size for size in found.advice.largest if not size.of}
    assert list(largest) == ["batch", "resolution", "frames"]
    for size in largest.values():
        at = {**job, "sizes": {**job["sizes"], **size.sizes}}
        prediction = vramcast.check(at, memory="1GiB")
        assert prediction.fits and prediction.verdict.needed_bytes == size.device_bytes
    more = {**job, "sizes": {**job["sizes"], "batch": largest["batch"].sizes["batch"] + 1}}
    assert not vramcast.check(more, memory="1GiB").fits
    document = found.to_document()
    assert document["largest"][0]["sizes"] == {"batch": largest["batch"].sizes["batch"]}


def test_a_smaller_batch_is_looked_for_with_accumulation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "tests.jobs.tiny:JOB", "--batch", "200000", "--memory", "3GiB", "--json"]) == 0
    (size,) = json.loads(capsys.readouterr().out)["largest"][:1]
    batch, accumulation = size["sizes"]["batch"], size["accumulation"]
    assert accumulation > 1 and size["samples_per_step"] == 200_000 == size["kept_batch"] * accumulation
    assert batch / 2 < size["kept_batch"] <= batch
    for more, fits in ((0, True), (1, False)):
        job = {**TINY, "sizes": {"batch": batch + more}, "accumulation": accumulation}
        assert vramcast.check(job, memory="3GiB").fits is fits
