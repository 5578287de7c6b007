"""A part of `make fuzz`: mutated inputs of every reader end in a result or a message, within time and memory."""

from __future__ import annotations

import sys

import pytest

from lab.attacks.fuzz.run import make_case, run, run_case
from lab.attacks.fuzz.seeds import seeds
from lab.attacks.fuzz.targets import TARGETS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


def test_every_reader_has_inputs() -> None:
    assert set(seeds()) == set(TARGETS)
    names = {name for one in seeds()["job"] for name in one.files}
    for part in ("accelerate", "ds_zero", "kair", "lightning", "diffsr", "torchtitan", "training_args", ".sh"):
        assert any(part in name for name in names), part
    verbs = {one.words[0] for one in seeds()["command"]}
    assert {"predict", "check", "advise", "whatif", "plan", "explain", "table", "show", "compare", "diagnose"} <= verbs


@pytest.mark.parametrize("target", [name for name in TARGETS if name != "predict"])
def test_inputs_as_they_are_are_no_failures(target: str) -> None:
    assert [run_case(one) for one in seeds()[target][:3]] == [""] * len(seeds()[target][:3])


def test_a_case_is_the_same_by_its_number() -> None:
    assert make_case(0, 17) == make_case(0, 17)
    assert make_case(0, 17) != make_case(1, 17)


@pytest.mark.slow
def test_mutated_inputs() -> None:
    assert [f"{one.number} {one.target}: {one.what[-400:]}" for one in run(0, 0, 700, 2, quiet=True)] == []


def test_failures_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect, a hang and a process that dies are each reported with their number."""
    import os

    from lab.attacks.fuzz import run as module

    def reader(folder: object, case: object) -> None:
        raise KeyError("a defect")

    def dying(folder: object, case: object) -> None:
        os._exit(7)

    def hanging(folder: object, case: object) -> None:
        while True:
            pass

    monkeypatch.setattr(module, "MOST_SECONDS", 0.2)
    for name in TARGETS:
        monkeypatch.setitem(TARGETS, name, (reader, TARGETS[name][1]))
    found = run(0, 0, 4, 2, quiet=True)
    assert sorted(one.number for one in found) == [0, 1, 2, 3]
    assert all("KeyError: 'a defect'" in one.what for one in found)
    for function, said in ((dying, "ended with 7"), (hanging, "more than 0 s")):
        for name in TARGETS:
            monkeypatch.setitem(TARGETS, name, (function, TARGETS[name][1]))
        found = run(0, 0, 2, 1, quiet=True)
        assert [one.number for one in found] == [0, 1]
        assert all(said in one.what for one in found)
