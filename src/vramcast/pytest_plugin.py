"""pytest: fail a test whose training step would not fit a card. Imports torch only where a test asks for a card.

@pytest.mark.fits_gpu("rtx-4090", margin=0.1)
def test_a_step_fits():
    ...                       # ordinary PyTorch that says "cuda"; it runs on a virtual card

def test_a_job(vramcast):
    vramcast.assert_fits("vramcast.yaml", gpu="a100-40gb")
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from vramcast.card.device.context import VirtualGpu
    from vramcast.card.device.recording import Recording
    from vramcast.features.check.check import JobCheck
    from vramcast.gpus import GpuSpec
    from vramcast.memory import Prediction
    from vramcast.prediction.job_prediction import JobPrediction

MARKER = "fits_gpu"
_HELP = (
    f"{MARKER}(gpu, margin=0): run the test on a virtual card and fail it when it would not fit the card with "
    "`margin`, a share of the card, left free; several marks check several cards"
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _HELP)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[Any]:
    wanted = _cards(pyfuncitem)
    if not wanted:
        return (yield)
    # On the largest card most of the step is seen; the others are judged by replaying what was seen there.
    largest, _ = max(wanted, key=lambda card: card[0].total_memory_bytes)
    with _card(largest) as run:
        result = yield
    for gpu, margin in wanted:
        prediction = _prediction(run, gpu)
        pyfuncitem.user_properties.append((f"vramcast {gpu.id} bytes", prediction.device_bytes))
        _fail_if_too_large(prediction, margin)
    return result


class Vramcast:
    """The `vramcast` fixture."""

    def predict(self, job: Any, *args: Any, **options: Any) -> JobPrediction:
        """`vramcast.predict`."""
        from vramcast.prediction.predict import predict

        return predict(job, *args, **options)

    def check(self, job: Any, *args: Any, **options: Any) -> JobCheck:
        """`vramcast.check`."""
        from vramcast.features.check.check import check

        return check(job, *args, **options)

    def assert_fits(self, job: Any, gpu: str | None = None, *, margin: float = 0.0, **options: Any) -> JobPrediction:
        """Fail the test when `job` would not fit `gpu` (or the job's own target) with `margin` left free."""
        result = self.predict(job, gpu, **options)
        _fail_if_too_large(result.prediction, _share(margin))
        return result

    @contextmanager
    def gpu(self, gpu: str | GpuSpec, *, margin: float = 0.0) -> Iterator[VirtualGpu]:
        """A virtual card for part of a test, which fails when that part would not fit with `margin` left free."""
        from vramcast.gpus import find_gpu

        spec = find_gpu(gpu) if isinstance(gpu, str) else gpu
        margin = _share(margin)
        with _card(spec) as run:
            yield run.card
        _fail_if_too_large(_prediction(run, spec), margin)


@pytest.fixture
def vramcast() -> Vramcast:
    """Predict and check jobs, or run part of a test on a virtual card: `with vramcast.gpu("rtx-4090"): ...`."""
    return Vramcast()


def _prediction(run: Recording, gpu: GpuSpec) -> Prediction:
    from vramcast.base.errors import VramcastError
    from vramcast.memory import predict

    try:
        return predict(run.trace(), gpu=gpu)
    except VramcastError as error:
        pytest.fail(f"vramcast: {error}", pytrace=False)


def _card(gpu: GpuSpec) -> AbstractContextManager[Recording]:
    from vramcast.card.device.context import virtual_gpu
    from vramcast.card.device.recording import recording

    return recording(virtual_gpu(gpu, source="the test"))


def _cards(item: pytest.Function) -> list[tuple[GpuSpec, float]]:
    """(card, margin) from all marks of the test; of two for one card the one that is closest to the test."""
    marks = list(item.iter_markers(MARKER))
    if not marks:
        return []
    from vramcast.base.errors import UsageError
    from vramcast.gpus import find_gpu

    wanted: dict[str, tuple[GpuSpec, float]] = {}
    for mark in marks:
        try:
            gpu, margin = _arguments(*mark.args, **mark.kwargs)
            spec = find_gpu(gpu)
        except (TypeError, UsageError) as error:
            message = str(error).replace("_arguments()", MARKER)
            pytest.fail(f"{MARKER}: {message}", pytrace=False)
        wanted.setdefault(spec.id, (spec, margin))
    return list(wanted.values())


def _arguments(gpu: str, margin: float = 0.0) -> tuple[str, float]:
    return gpu, _share(margin)


def _share(margin: float) -> float:
    from vramcast.base.errors import UsageError

    if not isinstance(margin, (int, float)) or not 0 <= margin < 1:
        raise UsageError(f"margin is a share of the card from 0 up to 1, e.g. 0.1, not {margin!r}")
    return float(margin)


def _fail_if_too_large(prediction: Prediction, margin: float) -> None:
    allowed = int(prediction.limit_bytes * (1 - margin))
    if not prediction.fits or prediction.device_bytes > allowed:
        from vramcast.report.gate import gate_text

        pytest.fail(gate_text(prediction, margin), pytrace=False)
