"""`vramcast explain`: each line is shape × bytes × count, and the sums are those of the account."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

import pytest
import torch

import vramcast
from tests.jobs.tiny import JOB
from tests.samples import transformer
from vramcast.cli.main import main
from vramcast.errors import UsageError
from vramcast.features.explain.modules import Explanation, explain
from vramcast.memory.module_names import find_modules
from vramcast.memory.replay import replay
from vramcast.memory.shapes import Shape
from vramcast.prediction.job_prediction import JobPrediction
from vramcast.trace import StepTrace

same_torch = pytest.mark.skipif(not torch.__version__.startswith("2.11"), reason="the golden output is of torch 2.11")


@cache
def prediction(checkpointing: str = "none", precision: str = "fp32", batch: int = 4096) -> JobPrediction:
    changes = {"checkpointing": checkpointing, "precision": precision, "sizes": {"batch": batch}}
    return vramcast.predict({**JOB, **changes}, "rtx-4090")


@pytest.mark.parametrize("checkpointing", ["none", "all"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("module", ["model", "model.blocks.0", "model.blocks.1.up", "model.head"])
def test_sums_are_those_of_the_account(module: str, checkpointing: str, precision: str) -> None:
    result = prediction(checkpointing, precision)
    found = result.explain(module).explanation
    stage = next(one for one in result.stages.walk() if one.name == module)
    assert found.stays.total_bytes == stage.stays_bytes
    assert found.inside.total_bytes == stage.inside_bytes
    assert found.momentary.total_bytes == stage.momentary_bytes
    node = next((one for one in result.account.modules.walk() if one.name == module), None)
    assert found.at_peak.by_kind() == (dict(node.by_kind_bytes) if node else {})
    weights = next(one for one in result.parameters.walk() if one.name == module)
    assert found.weights_bytes == weights.weights_bytes
    assert sum(one.optimizer_bytes for one in found.parameters) == weights.optimizer_bytes
    assert sum(one.count for one in found.parameters) == weights.count


def test_every_line_is_its_product() -> None:
    found = prediction().explain("model").explanation
    for part in (found.stays, found.momentary, found.at_peak):
        for item in part.items:
            assert item.shape is not None or item.kind == "workspaces"
            if item.shape is not None:
                assert item.shape.size_bytes == item.each_bytes


def test_a_known_module_by_hand() -> None:
    """A linear layer keeps nothing of its own but what it returns, which the GELU after it keeps."""
    found = prediction().explain("model.blocks.1.up").explanation
    (kept,) = found.stays.items
    assert (kept.op, kept.count, kept.each_bytes) == ("aten.addmm", 1, 4096 * 1024 * 4)
    assert kept.shape == Shape("fp32", (4096, 1024), 4)
    assert found.inputs == ((4096, 256),) and found.output == (4096, 1024)
    weight, bias = found.parameters
    assert (weight.name, weight.weights_bytes, weight.optimizer_bytes) == ("weight", 1024 * 256 * 4, 2 * 1024 * 256 * 4)
    assert weight.state == ("exp_avg", "exp_avg_sq") and bias.count == 1024


def test_checkpointed_blocks_keep_nothing_inside() -> None:
    found = prediction("all").explain("model.blocks.1").explanation
    assert {item.op for item in found.stays.items} == {"aten.add.Tensor"}, "only what the block returns"
    assert found.inside.total_bytes > found.stays.total_bytes


def test_a_pattern_adds_up_equal_layers() -> None:
    result = prediction()
    together = result.explain("model.blocks.*").explanation
    single = [result.explain(f"model.blocks.{i}").explanation for i in range(3)]
    assert together.modules == ("model.blocks.0", "model.blocks.1", "model.blocks.2")
    assert together.stays.total_bytes == sum(one.stays.total_bytes for one in single)
    assert max(item.count for item in together.stays.items) >= 3
    assert result.explain("blocks.*").explanation.modules == together.modules, "the component may be left out"


def test_depth_merges_names() -> None:
    shallow = prediction().explain("model", depth=1).explanation
    assert {item.module for item in shallow.stays.items} <= {"", "stem", "blocks", "head"}
    assert shallow.stays.total_bytes == prediction().explain("model").explanation.stays.total_bytes


def test_rounding_is_what_whole_blocks_add() -> None:
    trace = transformer(layers=2)
    run = replay(trace)
    found = explain(run, [""])
    assert found.at_peak.total_bytes == run.peak_reserved.requested_bytes
    assert found.rounding_bytes == run.peak_reserved.allocated_bytes - run.peak_reserved.requested_bytes


def test_names() -> None:
    known = ["model.blocks.0.up", "model.blocks.1.up", "model.head"]
    assert find_modules("model.blocks.*", known) == ("model.blocks.0", "model.blocks.1")
    assert find_modules("head", known) == ("model.head",)
    assert find_modules("*.blocks.*.up", known) == ("model.blocks.0.up", "model.blocks.1.up")
    with pytest.raises(UsageError, match=r"there is no module 'model.block.0'; did you mean model.blocks.0"):
        find_modules("model.block.0", known)
    with pytest.raises(UsageError, match=r"there is model, model\.blocks, model\.head"):
        find_modules("zzz", known)


@same_torch
def test_golden(capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]) -> None:
    argv = ["explain", "tests.jobs.tiny:JOB", "blocks.*", "--gpu", "rtx-4090", "--batch", "20000"]
    assert main([*argv, "--checkpointing", "all", "--precision", "bf16"]) == 0
    golden("explain", capsys.readouterr().out)


def test_json_and_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "tests.jobs.tiny:JOB", "model.head", "--gpu", "t4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == "vramcast-explanation" and document["version"] == 1
    assert document["stays"]["total_bytes"] == sum(one["total_bytes"] for one in document["stays"]["tensors"])
    assert "<table>" in prediction().explain("model.head")._repr_html_()


def test_a_wrong_name_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "tests.jobs.tiny:JOB", "model.blocs.0"]) == 2
    assert "did you mean model.blocks.0" in capsys.readouterr().err


def test_a_saved_trace_keeps_shapes(tmp_path: object) -> None:
    trace = prediction().trace
    assert trace is not None
    path = f"{tmp_path}/a.trace"
    trace.save(path)
    again = StepTrace.load(path)
    assert (again.shapes, again.shape) == (trace.shapes, trace.shape)
    assert isinstance(explain(replay(again), ["model"]), Explanation)
