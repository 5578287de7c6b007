"""The plugin as a project that has installed it would use it."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

import pytest

import vramcast
from tests.jobs.tiny import JOB
from vramcast.report.gate import gate_text

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
INSTALLED = any(entry.name == "vramcast" for entry in importlib.metadata.entry_points(group="pytest11"))
OPTIONS = ("-p", "no:cacheprovider", "-p", "no:xdist", *(() if INSTALLED else ("-p", "vramcast.pytest_plugin")))

STEP = """
import pytest, torch

def train(width, batch=64):
    model = torch.nn.Linear(width, width).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(batch, width, device="cuda")).sum().backward()
        optimizer.step()
    return model
"""


@pytest.fixture(scope="module", autouse=True)
def everything_is_imported() -> None:
    """pytester forgets what was imported first inside it, and torch cannot be imported twice."""
    gate_text(vramcast.check(JOB, gpu="t4").prediction.prediction, 0.1)


def run(pytester: pytest.Pytester, code: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(STEP + code)
    return pytester.runpytest_inprocess(*OPTIONS, *options)


def test_it_is_registered() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["entry-points"]["pytest11"] == {"vramcast": "vramcast.pytest_plugin"}


def test_a_step_that_fits_passes_and_one_that_does_not_fails_with_the_account(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
RUNS = []

@pytest.mark.fits_gpu("rtx-4090", margin=0.1)
def test_fits():
    assert train(256).weight.is_cuda

@pytest.mark.fits_gpu("t4")
def test_out_of_memory():
    train(40000)

@pytest.mark.fits_gpu("t4", margin=0.5)
def test_above_the_margin():
    train(22000, 8)

@pytest.mark.fits_gpu("a100-80gb")
@pytest.mark.fits_gpu("t4")
def test_two_cards():
    RUNS.append(torch.cuda.get_device_name())
    train(34000, 8)

def test_two_cards_are_judged_by_one_run():
    assert len(RUNS) == 1 and "A100" in RUNS[0]
""",
        "--junitxml=out.xml",
    )
    result.assert_outcomes(failed=3, passed=2)
    result.stdout.fnmatch_lines(
        [
            "*test_out_of_memory*",
            "Does not fit a T*T4: needs at least * GiB, * GiB usable",
            "out of memory at step 1*",
            "at the peak*",
            "weights *",
            "*test_above_the_margin*",
            "Fits a T*T4: needs *",
            "with a margin of 50%, * may be used: * too much",
            "*test_two_cards*",
            "Does not fit a T*T4: needs [0-9]* GiB, * GiB usable",  # the larger card has seen all of it
        ]
    )
    assert "torch.OutOfMemoryError" not in result.stdout.str()
    assert 'name="vramcast rtx-4090 bytes"' in (pytester.path / "out.xml").read_text(encoding="utf-8")


def test_the_test_s_own_failure_stays_its_own(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.mark.fits_gpu("t4")
def test_step():
    train(64)
    assert 1 == 2

@pytest.mark.fits_gpu("t4")
def test_nothing():
    pass

@pytest.mark.fits_gpu("t5")
def test_unknown_card():
    pass

@pytest.mark.fits_gpu("t4", margin=2)
def test_wrong_margin():
    pass

@pytest.mark.fits_gpu()
def test_no_card():
    pass

def test_no_card_is_left_over():
    assert not torch.cuda.is_available()
""",
    )
    result.assert_outcomes(failed=5, passed=1)
    result.stdout.fnmatch_lines(
        [
            "*assert 1 == 2*",
            "vramcast: the run allocated nothing on the GPU*",
            "fits_gpu: *t5*",
            "fits_gpu: margin is a share*",
            "fits_gpu: *missing 1 required positional argument: 'gpu'",
        ]
    )


def test_the_fixture(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
from tests.jobs.tiny import JOB

def test_part(vramcast):
    with vramcast.gpu("t4") as card:
        train(64)
    assert card.prediction().fits

def test_part_that_is_too_large(vramcast):
    with vramcast.gpu("t4"):
        train(40000)

def test_job(vramcast):
    assert vramcast.assert_fits(JOB, gpu="t4", margin=0.1).device_bytes == vramcast.predict(JOB, "t4").device_bytes
    assert vramcast.check(JOB, gpu="t4").fits

def test_job_that_is_too_large(vramcast):
    vramcast.assert_fits({**JOB, "sizes": {"batch": 10_000_000}}, gpu="t4")
""",
    )
    result.assert_outcomes(failed=2, passed=2)
    result.stdout.fnmatch_lines(["Does not fit a T*T4: needs at least*", "Does not fit a T*T4: needs *"])


def test_unused_it_leaves_torch_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing_heavy():
            assert not {"torch", "rich", "pydantic", "vramcast.memory"} & set(sys.modules)
        """
    )
    result = pytester.runpytest_subprocess(*OPTIONS, "-p", "no:hypothesispytest", "--strict-markers")
    result.assert_outcomes(passed=1)
