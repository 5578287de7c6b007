"""Corpus workloads written as job files: the bars of the virtual GPU itself, and the same bytes as their code."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lab.comparing.errors import signed_percent
from lab.comparing.job_accuracy import compare_jobs, job_files, reasons, workloads_with_jobs
from lab.comparing.predictions import Comparison, Measured
from lab.measuring.measure_corpus import load_everything
from lab.pages.job_page import difference
from tests.accuracy.conftest import EVERY_VARIABLE, reason_to_skip
from tests.accuracy.test_accuracy import tolerances

QUICK = {
    "bert-fp32", "deeplabv3-r50-fp32", "gpt2-fp16-scaler-lion", "ho-pixart-fp16", "ho-svd-decoder-bf16",
    "r2plus1d-cl-fp16", "resnet50-cl-fp32", "wav2vec2-base-fp32",
}  # fmt: skip
"""Some of those whose code is predicted here too; `make accuracy` predicts every one."""

FARTHER = {"ho-resnet152-ckpt-stages": (0.014, 0.001)}
"""Reserved and allocated of job files that are farther off than the code of their workload."""

WORKLOADS = workloads_with_jobs()
DIFFERENT = reasons()


def _skipped(name: str) -> str:
    if name not in QUICK and not os.environ.get(EVERY_VARIABLE):
        return f"a few are enough here: `make accuracy` predicts it, and so does {EVERY_VARIABLE}=1"
    return reason_to_skip(name)


@pytest.fixture(scope="module")
def by_job() -> Iterator[dict[str, Comparison]]:
    chosen = [workload for workload in WORKLOADS if not _skipped(workload.name)]
    yield {c.measured.name: c for c in compare_jobs(chosen)}


@pytest.mark.accuracy
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_job_file(workload: Measured, by_job: dict[str, Comparison], comparisons: dict[str, Comparison]) -> None:
    if reason := _skipped(workload.name):
        pytest.skip(reason)
    job, code = by_job[workload.name], comparisons[workload.name]
    assert not job.error, job.error
    reserved, allocated = FARTHER.get(workload.name) or tolerances(workload.name)
    assert abs(job.reserved_error) <= reserved, f"reserved is off by {signed_percent(job.reserved_error)}"
    assert abs(job.allocated_error) <= allocated, f"allocated is off by {signed_percent(job.allocated_error)}"
    if workload.name not in DIFFERENT:
        assert difference(job, code) == (0, 0), "not what its code takes; lab/data/job_differences.yaml says none"


def test_every_job_file_is_of_a_measured_workload() -> None:
    measured = {workload.name for workload in WORKLOADS}
    assert set(job_files()) == measured
    assert measured <= {workload.name for workload in load_everything()}
    assert set(DIFFERENT) <= measured


def test_job_files_name_their_workload_and_can_be_read() -> None:
    from vramcast.base.access import CodeGate
    from vramcast.jobs.load import load_job
    from vramcast.jobs.readers import Request

    for name, path in job_files().items():
        loaded = load_job(str(path), {}, Request(gate=CodeGate(allowed=True)))
        assert loaded.job.name == name
