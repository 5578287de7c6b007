"""Predict the measured workloads once for the whole session, in child processes."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator

import pytest

SLOW_VARIABLE = "VRAMCAST_SLOW_TESTS"
SLOW = {
    "cogvideox-5b-unlearning",
    "gpt2-medium-accumulate",
    "robot-policy-vggt-llama",
    "sdxl-unet-ckpt",
    "vrt-gopro-128-unfrozen",
    "vrt-gopro-224",
}
"""More than ten seconds each on two cores; `make accuracy` predicts them too."""

if importlib.util.find_spec("yaml") is None or importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]


def recorded() -> list[object]:
    from corpus.predictions import recordings

    return [workload for recording in recordings() for workload in recording.workloads]


def known_misses() -> dict[str, dict[str, float]]:
    """Workloads whose error is above the tolerance, from corpus/known_misses.yaml."""
    import yaml
    from corpus.predictions import FOLDER

    misses: dict[str, dict[str, float]] = yaml.safe_load((FOLDER.parent / "known_misses.yaml").read_text())["misses"]
    return misses


def reason_to_skip(name: str) -> str:
    """Why a workload cannot be compared here; empty when it can."""
    from corpus.measure_corpus import load_corpus
    from corpus.predictions import recordings

    workloads = {w.name: w for w in load_corpus()}
    second_set = name in workloads and "heldout" in workloads[name].tags
    if (name in SLOW or second_set) and not os.environ.get(SLOW_VARIABLE):
        return f"takes long: `make accuracy` predicts it, and so does {SLOW_VARIABLE}=1"
    needs = workloads[name].needs if name in workloads else []
    if name in workloads and workloads[name].missing:
        return "needs " + ", ".join(workloads[name].missing)
    for recording in recordings():
        measured_with = {"torch": recording.environment["torch"], **recording.environment.get("packages", {})}
        for package in ("torch", *needs):
            wanted = measured_with.get(package, "").partition("+")[0]
            if wanted and (here := importlib.metadata.version(package).partition("+")[0]) != wanted:
                return f"measured with {package} {wanted}, here is {here}"
    return ""


@pytest.fixture(scope="session")
def comparisons(request: pytest.FixtureRequest) -> Iterator[dict[str, object]]:
    """By name, for the workloads of the tests that were collected and can run."""
    from corpus.predictions import compare_each

    wanted = {
        item.callspec.params["workload"].name
        for item in request.session.items
        if hasattr(item, "callspec") and "workload" in item.callspec.params
    }
    chosen = [w for w in recorded() if w.name in wanted and not reason_to_skip(w.name)]  # type: ignore[attr-defined]
    jobs = max(1, min(4, os.cpu_count() or 1))
    yield {c.measured.name: c for c in compare_each(chosen, jobs=jobs)}  # type: ignore[arg-type]
