"""Configs that nobody would write: each gives a job or one message, and what runs adds up."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vramcast.errors import VramcastError
from vramcast.jobs.fields import Section
from vramcast.jobs.load import with_overrides
from vramcast.jobs.schema import Component, Job
from vramcast.jobs.validation import make_job
from vramcast.jobs.yaml_file import parse_yaml
from vramcast.prediction.predict import predict
from vramcast.trace.schema import KINDS

_WORDS = st.sampled_from(
    [
        "", "adamw", "bf16", "all", "frozen", "trained", "lora", "model", "batch", "x", "labels", "a:b", "gpu", "cpu",
        "tests.jobs.tiny:mixer", "frames // 4 + 1", "batch ** 99", "1 / 0", "rtx-4090", "24GiB", "ddp", "fsdp", "none",
        "mse", "é\n",
    ]
)  # fmt: skip
_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.integers(0, 8), st.floats(), _WORDS
)  # fmt: skip


def _keys(section: type[Section]) -> st.SearchStrategy[str]:
    known = list(section.model_fields)
    return st.one_of(st.sampled_from(known), st.sampled_from([f"{name[:-1]}" for name in known]), _WORDS)


_LOOSE: st.SearchStrategy[Any] = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(_WORDS, st.integers()), inner, max_size=3)
    ),
    max_leaves=6,
)


def _section(section: type[Section]) -> st.SearchStrategy[Any]:
    """Mostly the right keys, with values of any kind."""
    return st.dictionaries(_keys(section), st.one_of(_SCALARS, _LOOSE), max_size=5)


def _valid_component() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"factory": st.just("tests.jobs.tiny:mixer")},
        optional={
            "mode": st.sampled_from(["trained", "frozen", "lora"]),
            "dtype": st.sampled_from(["fp32", "torch.bfloat16", "float16", "int8"]),
            "copies": st.integers(0, 3),
            "freeze": st.sampled_from([["stem"], ["head.*", "zzz"], "stem"]),
            "no_grad": st.booleans(),
        },
    )


def _configs() -> st.SearchStrategy[Any]:
    fields = {name: st.one_of(_LOOSE, _section(Component)) for name in Job.model_fields if name != "components"}
    job = st.fixed_dictionaries(
        {
            "components": st.one_of(
                st.fixed_dictionaries({"model": st.one_of(_valid_component(), _section(Component))}), _LOOSE
            )
        },
        optional={name: fields[name] for name in fields},
    )
    return st.one_of(job, _section(Job), _LOOSE)


_EVERY = bool(os.environ.get("VRAMCAST_EVERY_CONFIG"))
"""All of them take minutes."""
_RELAXED = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True, "database": None}


@settings(max_examples=10_000 if _EVERY else 700, **_RELAXED)
@given(_configs())
def test_any_config_is_a_job_or_a_message(config: Any) -> None:
    try:
        job = make_job(config, "job")
    except VramcastError as error:
        assert str(error).startswith("job")
        assert error.exit_code == 2
        return
    assert Job.model_validate(job.model_dump(exclude_unset=True)) == job
    assert Job.model_validate_json(job.model_dump_json(exclude_unset=True)) == job


@settings(max_examples=300, **_RELAXED)
@given(st.text("abcdefgh.sizes_0123=-", min_size=1, max_size=20), _LOOSE)
def test_any_change_is_a_job_or_a_message(key: str, value: Any) -> None:
    from tests.jobs.tiny import JOB

    try:
        with_overrides(make_job(JOB, "job"), {key: value})
    except VramcastError as error:
        assert error.exit_code == 2


@settings(max_examples=300, **_RELAXED)
@given(st.one_of(st.text(max_size=60), st.text("ab:{}[],&*!|>-# \n'\"\t%@`?", max_size=40)))
def test_any_text_is_yaml_or_a_message(text: str) -> None:
    try:
        parse_yaml(text, "x.yaml")
    except VramcastError as error:
        assert str(error).startswith("x.yaml")


_CONFIG_VALUES = st.one_of(_SCALARS, st.integers(1, 64), st.lists(st.integers(0, 8), max_size=2), st.just({}))


def _model_config(config: dict[str, Any], folder: Any) -> None:
    (folder / "config.json").write_text(json.dumps(config))
    try:
        predict(str(folder), "rtx-4090", steps=1)
    except VramcastError as error:
        assert error.exit_code in (2, 3)


_BERT = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 99, "hidden_size": 32,
    "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 32,
}  # fmt: skip


@pytest.mark.slow
@settings(max_examples=150 if _EVERY else 60, **_RELAXED)
@given(
    st.dictionaries(st.sampled_from([*_BERT, "hidden_act", "torch_dtype", "pad_token_id", "auto_map"]), _CONFIG_VALUES)
)
def test_any_config_of_a_model_is_built_or_a_message(tmp_path_factory: Any, changes: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    _model_config(_BERT | changes, tmp_path_factory.mktemp("model"))


_SMALL_JOBS = st.fixed_dictionaries(
    {
        "components": st.fixed_dictionaries(
            {
                "model": st.fixed_dictionaries(
                    {
                        "factory": st.just("tests.jobs.tiny:mixer"),
                        "arguments": st.fixed_dictionaries(
                            {"width": st.sampled_from([8, 64]), "depth": st.integers(1, 3)}
                        ),
                    },
                    optional={
                        "freeze": st.sampled_from([["stem"], ["head"], ["blocks.0.*"], ["stem", "head", "blocks"]]),
                        "dtype": st.sampled_from(["fp32", "bf16"]),
                        "copies": st.integers(1, 3),
                        "training_mode": st.booleans(),
                        "built_on": st.sampled_from(["cpu", "gpu"]),
                        "prepare": st.sampled_from([[], ["half"], ["zero_grad", "no_such_method"]]),
                    },
                )
            }
        ),
        "inputs": st.just(
            {"x": {"shape": ["batch", 64]}, "labels": {"shape": ["batch"], "dtype": "int64", "below": 8}}
        ),
        "sizes": st.fixed_dictionaries({"batch": st.integers(1, 300)}),
    },
    optional={
        "task": st.sampled_from(["training", "inference"]),
        "precision": st.sampled_from(["fp32", "bf16", "fp16", "tf32"]),
        "optimizer": st.sampled_from(["adamw", "sgd", {"name": "adam", "arguments": {"fused": True}}, "lbfgs"]),
        "ema": st.sampled_from([True, False, {"update": "loop"}, {"device": "cpu"}]),
        "gradient_clipping": st.floats(0.1, 10),
        "accumulation": st.integers(1, 9),
        "checkpointing": st.sampled_from(
            ["none", "all", {"scope": "modules", "modules": ["blocks.*"], "reentrant": True}]
        ),
        "evaluation": st.fixed_dictionaries({"when": st.sampled_from(["before", "between", "after"])}),
        "gpus": st.sampled_from([1, 2, {"count": 2, "strategy": "fsdp"}]),
        "zero_grad": st.sampled_from(["before-forward", "before-backward", "after-step"]),
        "outputs_live_until": st.sampled_from(["forward", "step", "next-step"]),
        "batch_lives_until": st.sampled_from(["forward", "step", "next-step"]),
        "forward_function": st.booleans(),
        "loss": st.sampled_from(["cross-entropy", "mean", "mse", {"kind": "cross-entropy", "label_smoothing": 0.1}]),
    },
)  # fmt: skip


@settings(max_examples=300 if _EVERY else 50, **_RELAXED)
@given(_SMALL_JOBS)
def test_small_jobs_add_up(config: dict[str, Any]) -> None:
    try:
        result = predict(config, "rtx-4090", steps=2)
    except VramcastError:
        return
    account = result.account
    parts = {part.name: part.size_bytes for part in account.parts}
    assert sum(parts.values()) == result.device_bytes == account.device_bytes
    assert account.modules.total_bytes == sum(parts[kind] for kind in KINDS)
    for node in result.parameters.walk():
        assert node.trained_count <= node.count
        assert node.count >= sum(child.count for child in node.children)
    assert result.parameters.count == sum(child.count for child in result.parameters.children)
    for stage in result.stages.walk():
        assert stage.stays_bytes >= sum(child.stays_bytes for child in stage.children)
    assert result.to_document()["fits"] == result.fits
