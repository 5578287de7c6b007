"""What the cards here hold, asked through the real NVML binding; the answers are constructed (constructed.py)."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest

from tests.gpus.conftest import Machine
from tests.gpus.constructed import (
    DIVIDED_A100,
    LOST,
    NO_PERMISSION,
    NOT_AVAILABLE,
    NOT_SUPPORTED,
    Card,
    call,
    instance,
    machine,
)
from vramcast.base.units import GIB, MIB
from vramcast.cli.main import main
from vramcast.errors import UsageError
from vramcast.gpus import state
from vramcast.gpus.detect import detect_gpu
from vramcast.gpus.state import local_gpu, local_gpus, parse_smi_state, survey
from vramcast.gpus.survey import GpuProcess, LocalGpu

A_4090 = Card(used=3 * GIB, busy=55, celsius=61, compute=((os.getpid(), 2 * GIB), (4194305, GIB // 2)))


def second(card: Card) -> Card:
    return dataclasses.replace(card, uuid="GPU-1a000000-0000-0000-0000-000000000000")


def test_a_card_and_its_processes(cards_here: Machine) -> None:
    cards_here(A_4090)
    (card,) = local_gpus()
    assert (card.name, card.total_bytes, card.used_bytes) == ("NVIDIA GeForce RTX 4090", 24564 * MIB, 3 * GIB)
    assert card.reserved_bytes == 350 * MIB
    assert card.total_bytes == card.used_bytes + card.free_bytes + card.reserved_bytes
    assert (card.busy_percent, card.temperature_celsius) == (55, 61)
    mine, other = card.processes
    assert (mine.pid, mine.used_bytes, mine.kind) == (os.getpid(), 2 * GIB, "compute")
    assert mine.name.startswith("python") and mine.user is not None
    # A number that no process here can have: another container's.
    assert other == GpuProcess(4194305, "", GIB // 2, user=None)
    assert survey().driver == "580.65.06"
    assert detect_gpu() == card.spec() and card.spec().id == "rtx-4090"


def test_an_older_driver_counts_its_own_part_as_used(cards_here: Machine) -> None:
    cards_here(Card(reserved=None, used=GIB))
    (card,) = local_gpus()
    assert (card.used_bytes, card.reserved_bytes) == (GIB, None)


def test_a_process_that_computes_and_draws_is_one(cards_here: Machine) -> None:
    cards_here(Card(compute=((7, GIB),), graphics=((7, GIB), (9, NOT_AVAILABLE))))
    (card,) = local_gpus()
    assert [(p.pid, p.used_bytes, p.kind) for p in card.processes] == [
        (7, GIB, "compute and graphics"), (9, None, "graphics")
    ]  # fmt: skip


def test_what_a_card_does_not_say_is_none(cards_here: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    cards_here(Card(busy=None, celsius=None, compute=None, graphics=None))
    (card,) = local_gpus()
    assert (card.busy_percent, card.temperature_celsius, card.processes) == (None, None, ())
    assert not card.processes_known
    assert main(["gpus", "--here"]) == 0
    out = capsys.readouterr().out
    assert "this card does not say" in out and "the driver does not list them" in out


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION])
def test_processes_may_be_refused(cards_here: Machine, code: int) -> None:
    calls = [one | {"code": code} if "RunningProcesses" in one["call"] else one for one in machine(Card(used=GIB))]
    cards_here(calls=calls)
    (card,) = local_gpus()
    assert card.used_bytes == GIB and not card.processes_known


def test_a_driver_without_the_newer_calls(cards_here: Machine) -> None:
    calls = [one | {"call": one["call"].replace("_v3", "_v2")} for one in machine(Card(compute=((7, GIB),)))]
    for one in calls:
        if one["call"].endswith("RunningProcesses_v2") and len(one["out"]) == 2:
            one["out"] = [1, [{"pid": 7, "usedGpuMemory": GIB}]]
    cards_here(calls=calls)
    assert [p.pid for p in local_gpus()[0].processes] == [7]


def test_instances_stand_in_place_of_their_card(cards_here: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    cards_here(DIVIDED_A100, second(A_4090))
    large, small, whole = local_gpus()
    assert [card.index for card in (large, small, whole)] == [0, 1, 2]
    assert large.mig is not None and (large.mig.card, large.mig.gpu_instance) == (0, 1)
    assert (large.total_bytes, large.used_bytes, small.used_bytes) == (19968 * MIB, 11 * GIB, 13 * MIB)
    assert large.processes == (GpuProcess(71, large.processes[0].name, None, user=large.processes[0].user),)
    # Less memory than the whole card, but its architecture.
    assert large.spec().compute_capability == (8, 0)
    assert large.spec().memory_mib == 19968
    assert whole.mig is None
    main(["gpus", "--here"])
    out = capsys.readouterr().out
    assert "(instance 1/0 of card 0)" in out and "one MIG instance at a time" in out and "not said" in out


def test_a_card_divided_into_nothing_is_shown_whole(cards_here: Machine) -> None:
    calls = machine(DIVIDED_A100)
    for one in calls:
        if one["call"] == "nvmlDeviceGetMigDeviceHandleByIndex":
            one |= {"code": 6, "out": []}
    cards_here(calls=calls)
    (card,) = local_gpus()
    assert card.mig is None and card.name == "NVIDIA A100-SXM4-40GB"


def test_a_lost_card_is_said_and_the_others_shown(cards_here: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    cards_here(Card(lost=True), second(A_4090))
    found = survey()
    assert [card.used_bytes for card in found.cards] == [3 * GIB]
    assert [problem.index for problem in found.problems] == [0]
    main(["gpus", "--here"])
    assert "card 0 (as nvidia-smi counts) does not answer: the driver has lost it" in capsys.readouterr().out
    main(["gpus", "--here", "--json"])
    assert json.loads(capsys.readouterr().out)["problems"][0]["index"] == 0


def test_all_cards_lost(cards_here: Machine) -> None:
    calls = [one | ({"code": LOST} if "HandleByIndex" in one["call"] else {}) for one in machine(Card())]
    cards_here(calls=calls)
    found = survey()
    assert found.cards == () and found.why_none == "no card answers" and len(found.problems) == 1


@pytest.mark.parametrize(
    ("code", "why"),
    [(9, "installed but not loaded"), (18, "was updated"), (4, "may not ask"), (999, "NVML answers: Unknown Error")],
)
def test_why_there_is_no_card(
    cards_here: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, code: int, why: str
) -> None:
    monkeypatch.setattr(state, "_smi", lambda: "")
    cards_here(calls=[call("nvmlInitWithFlags", 0, code=code)])
    assert main(["gpus", "--here"]) == 0
    assert f"no NVIDIA GPU here: {why}" in capsys.readouterr().out.replace("\n", " ") or why in survey().why_none
    main(["gpus", "--here", "--json"])
    assert why in json.loads(capsys.readouterr().out)["why_none"]


def test_a_driver_with_no_card(cards_here: Machine) -> None:
    cards_here()
    assert survey().why_none == "NVML lists no card"


@pytest.mark.parametrize(
    ("visible", "used"),
    [("1", [3]), ("1,0", [3, 1]), ("GPU-1a", [3]), ("", []), ("0,7,1", [1]), ("-1", [])],
)
def test_visible_devices_are_heeded(
    cards_here: Machine, monkeypatch: pytest.MonkeyPatch, visible: str, used: list[int]
) -> None:
    cards_here(Card(used=GIB), second(A_4090))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    cards = local_gpus()
    assert [card.used_bytes // GIB for card in cards] == used
    assert [card.index for card in cards] == list(range(len(cards)))
    assert bool(cards) != ("hides every card" in survey().why_none)


def test_an_instance_is_visible_by_its_name(cards_here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    cards_here(DIVIDED_A100)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", instance("1g.5gb", 1, 2).uuid)
    (card,) = local_gpus()
    assert card.index == 0 and card.total_bytes == 4864 * MIB


def test_a_card_that_is_not_there(cards_here: Machine) -> None:
    cards_here(Card(), second(Card()))
    with pytest.raises(UsageError, match="the visible ones are 0, 1"):
        local_gpu(2)


def test_nvidia_smi_where_the_binding_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # the import fails
    monkeypatch.setattr(state, "_smi", lambda: "0, GPU-1, 24564, 564, 24000, NVIDIA GeForce RTX 4090\nnonsense\n")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (card,) = local_gpus()
    assert card.free_bytes == 24000 * MIB
    assert card.spec().id == "rtx-4090"
    monkeypatch.setattr(state, "_smi", lambda: "")
    assert "vramcast[gpu]" in survey().why_none
    assert parse_smi_state("") == []


def test_an_unknown_card_is_known_by_its_size() -> None:
    card = LocalGpu(index=0, name="NVIDIA Thing", uuid="", total_bytes=48 * GIB, used_bytes=0, free_bytes=48 * GIB)
    assert card.spec().memory_mib == 48 * 1024


def test_the_verb_as_text_and_json(cards_here: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    cards_here(A_4090, second(Card()))
    assert main(["gpus", "--here"]) == 0
    out = capsys.readouterr().out
    assert "55 %  61 °C" in out and "512.0 MiB" in out and "hidden" in out
    assert main(["gpus", "--here", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == "vramcast-local-gpus"
    assert document["gpus"][0]["processes"][0]["pid"] == os.getpid()
    assert main(["gpus"]) == 0  # the known ones first
    out = capsys.readouterr().out
    assert out.index("rtx-3090") < out.index("in this machine:") < out.index("61 °C")
    assert main(["gpus", "--here", "h200"]) == 2


def test_only_looks(cards_here: Machine) -> None:
    """Nothing but questions: no call of NVML that sets, resets or ends anything."""
    library = cards_here(DIVIDED_A100, A_4090)
    survey()
    assert {name for name in library.asked if "Get" not in name} == {"nvmlInitWithFlags", "nvmlShutdown"}


RECORDINGS = sorted((Path(__file__).parent / "recordings").glob("*.json"))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_recorded_cards_agree_with_nvidia_smi(path: Path, cards_here: Machine) -> None:
    """Every moment of a recording on a real card, with what nvidia-smi printed at the same time."""
    document = json.loads(path.read_text())
    assert not document["constructed"]
    for moment in document["moments"]:
        cards_here(calls=moment["calls"])
        cards = local_gpus()
        listed = [line.split(", ") for line in moment["nvidia_smi"]["gpus"][1:]]
        assert len(cards) == len(listed)
        for card, (_, name, _, total, reserved, used, free, _, celsius, _) in zip(cards, listed, strict=True):
            assert card.name == name and card.spec().name == name
            sizes = (card.total_bytes, card.reserved_bytes or 0, card.used_bytes, card.free_bytes)
            assert [f"{-(-size // MIB)} MiB" for size in sizes] == [total, reserved, used, free]  # it rounds up
            assert abs((card.temperature_celsius or 0) - int(celsius)) <= 3
        apps = dict(line.split(", ") for line in moment["nvidia_smi"]["compute_apps"][1:])
        told = {str(p.pid): f"{-(-(p.used_bytes or 0) // MIB)} MiB" for card in cards for p in card.processes}
        assert told == apps
        if "process" in moment:
            assert str(moment["process"]["pid"]) in told
