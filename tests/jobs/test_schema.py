"""What a job accepts, its short forms, and that what is made from the schema is current."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramcast.errors import UsageError
from vramcast.jobs.field_reference import with_reference
from vramcast.jobs.json_schema import schema_text
from vramcast.jobs.schema import Component, Job, Precision
from vramcast.jobs.validation import make_job

ROOT = Path(__file__).parents[2]
MODEL: dict[str, Any] = {"components": {"model": {"transformers": "folder"}}}


def test_the_shortest_job() -> None:
    job = make_job(MODEL, "job")
    assert job.components["model"].source == "transformers"
    assert job.effective_sizes == {"batch": 1}
    assert job.precision.weights_dtype == "fp32"
    assert [one.name for one in job.optimizer] == ["adamw"]


def test_short_forms_stand_for_sections() -> None:
    short = {
        "precision": "bf16", "optimizer": ["sgd", "adam"], "loss": "mse", "checkpointing": "all", "gpus": 4,
        "target": "rtx-4090", "ema": True,
    }  # fmt: skip
    long = {
        "precision": {"preset": "bf16"}, "optimizer": [{"name": "sgd"}, {"name": "adam"}], "loss": [{"kind": "mse"}],
        "checkpointing": {"scope": "all"}, "gpus": {"count": 4}, "target": {"gpu": "rtx-4090"},
        "ema": {"enabled": True},
    }  # fmt: skip
    assert make_job(MODEL | short, "job") == make_job(MODEL | long, "job")


@pytest.mark.parametrize(
    ("precision", "weights", "autocast", "scaler"),
    [
        (Precision(), "fp32", "none", False),
        (Precision(preset="bf16"), "fp32", "bf16", False),
        (Precision(preset="fp16"), "fp32", "fp16", True),
        (Precision(preset="pure-bf16"), "bf16", "none", False),
        (Precision(preset="fp16", grad_scaler=False), "fp32", "fp16", False),
        (Precision(weights="bf16", autocast="bf16"), "bf16", "bf16", False),
    ],
)
def test_presets_of_precision(precision: Precision, weights: str, autocast: str, scaler: bool) -> None:
    assert precision.weights_dtype == weights
    assert precision.autocast_dtype == autocast
    assert precision.uses_grad_scaler is scaler


def test_a_global_batch_is_divided_by_the_gpus() -> None:
    job = make_job(MODEL | {"gpus": {"count": 8, "global_batch": 32}}, "job")
    assert job.effective_sizes["batch"] == 4
    assert job.gpus.effective_strategy == "ddp"


def test_gradients_flow_through_a_loss_network() -> None:
    assert Component(torchvision="vgg19", mode="frozen").runs_without_grad
    assert not Component(torchvision="vgg19", mode="frozen", role="loss-network").runs_without_grad
    assert not Component(torchvision="vgg19").runs_without_grad


@pytest.mark.parametrize(
    ("components", "message"),
    [
        ({"m": {"timm": "a", "torchvision": "b"}}, "exactly one of"),
        ({"m": {}}, "none of them"),
        ({"m": {"timm": "a", "lora": {}}}, "mode: lora"),
        ({"m": {"timm": "a", "subfolder": "unet"}}, "subfolder"),
        ({"m": {"timm": "a", "device": "cpu"}}, "mode: frozen"),
        ({"m": {"copy_of": "n"}}, "no component above it called 'n'"),
        ({"m": {"timm": "a", "inputs": ["x"]}}, "no input, or component above it called 'x'"),
    ],
)
def test_components_that_contradict_themselves(components: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_job({"components": components, "inputs": {"y": {"shape": [1]}}}, "job")


def test_every_field_is_described() -> None:
    document = json.loads(schema_text())
    for name, section in {"Job": document, **document["$defs"]}.items():
        for field, value in section["properties"].items():
            assert value.get("description"), f"{name}.{field}"


def test_the_schema_file_is_current() -> None:
    assert (ROOT / "vramcast.schema.json").read_text(encoding="utf-8") == schema_text(), "run `make job-docs`"


def test_the_docs_page_is_current() -> None:
    page = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
    assert with_reference(page) == page, "run `make job-docs`"


def test_the_examples_on_the_docs_page_are_jobs() -> None:
    from vramcast.jobs.yaml_file import parse_yaml

    page = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in page.split("```yaml\n")[1:]]
    whole = [block for block in blocks if "components:" in block]
    assert len(whole) == 3
    for block in whole:
        make_job(parse_yaml(block, "docs/jobs.md")[0], "docs/jobs.md")


def test_a_job_survives_json() -> None:
    job = make_job(MODEL | {"sizes": {"batch": 2}, "loss": ["mse", {"kind": "l1", "weight": 2}]}, "job")
    assert Job.model_validate_json(job.model_dump_json()) == job
