"""Predict the measured workloads once for the whole session, in child processes."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import zlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

EVERY_VARIABLE = "VRAMCAST_EVERY_WORKLOAD"
ONE_IN = 8
"""So many workloads make one that is predicted here, whichever they are; `make accuracy` predicts every one."""

if importlib.util.find_spec("yaml") is None or importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]


def recorded() -> list[object]:
    from lab.comparing.predictions import recordings

    return [workload for recording in recordings() for workload in recording.workloads]


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs the predictions of the workloads runs in one process, which makes them once."""
    for item in items:
        if item.get_closest_marker("accuracy") is not None:
            shared = "comparisons" in getattr(item, "fixturenames", ())
            item.add_marker(pytest.mark.xdist_group("workloads" if shared else item.path.name))


@cache
def reason_to_skip(name: str) -> str:
    """Why a workload cannot be compared here; empty when it can."""
    if zlib.crc32(name.encode()) % ONE_IN and not os.environ.get(EVERY_VARIABLE):
        return f"one in {ONE_IN} is enough here: `make accuracy` predicts it, and so does {EVERY_VARIABLE}=1"
    workloads, environments = _corpus()
    needs = workloads[name].needs if name in workloads else []
    if name in workloads and workloads[name].missing:
        return "needs " + ", ".join(workloads[name].missing)
    for environment in environments:
        measured_with = {"torch": environment["torch"], **environment.get("packages", {})}
        for package in ("torch", *needs):
            wanted = measured_with.get(package, "").partition("+")[0]
            if wanted and (here := importlib.metadata.version(package).partition("+")[0]) != wanted:
                return f"measured with {package} {wanted}, here is {here}"
    return ""


@cache
def _corpus() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Workloads by name, and the environments in which they were recorded."""
    from lab.comparing.predictions import recordings
    from lab.measuring.measure_corpus import load_everything

    return {w.name: w for w in load_everything()}, [recording.environment for recording in recordings()]


@pytest.fixture(scope="session")
def comparisons(request: pytest.FixtureRequest) -> Iterator[dict[str, object]]:
    """By name, for the workloads of the tests that were collected and can run."""
    from lab.comparing.predictions import compare_each

    wanted = {
        item.callspec.params["workload"].name
        for item in request.session.items
        if hasattr(item, "callspec") and "workload" in item.callspec.params
    }
    chosen = [w for w in recorded() if w.name in wanted and not reason_to_skip(w.name)]  # type: ignore[attr-defined]
    jobs = max(1, min(4, os.cpu_count() or 1))
    yield {c.measured.name: c for c in compare_each(chosen, jobs=jobs)}  # type: ignore[arg-type]
