"""Which options suit a job and a card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.tiny import JOB as TINY
from vramcast.base.errors import CannotPredict
from vramcast.card.compiled.compiler import why_not
from vramcast.features.advise.combination import combinations
from vramcast.features.advise.knob_names import KNOBS
from vramcast.features.advise.knobs import knobs, options_for
from vramcast.features.advise.option import LAST_RESORT, RISKS, SAFE, USUAL
from vramcast.features.advise.peft_targets import models_with_usual_targets
from vramcast.gpus import find_gpu
from vramcast.jobs.load import with_overrides
from vramcast.jobs.validation import make_job

LLAMA = {"components": {"model": {"transformers": "tests/jobs/folders/llama-2-7b"}}}
ADAPTED = {"components": {"model": {"transformers": "tests/jobs/folders/llama-2-7b", "mode": "lora"}}}


def texts(job: dict[str, Any], knob: str, gpu: str = "rtx-4090") -> list[str]:
    return [option.text for option in options_for(make_job(job, "job"), find_gpu(gpu), ()).get(knob, [])]


def test_every_knob_is_called_by_its_file() -> None:
    assert tuple(knob.NAME for knob in knobs()) == KNOBS


def test_every_combination_is_a_job_that_keeps_the_batch_of_a_step() -> None:
    job = make_job({**TINY, "sizes": {"batch": 6}, "accumulation": 2}, "job")
    every = list(combinations(options_for(job, find_gpu("rtx-4090"), ()), LAST_RESORT))
    assert len(every) > 100
    for one in every:
        changed = with_overrides(job, one.changes)
        assert changed.effective_sizes["batch"] * changed.accumulation * changed.gpus.count == 12
        assert one.time > 0 and 0 <= one.risk < len(RISKS)
    assert all(one.risk == SAFE for one in combinations(options_for(job, find_gpu("rtx-4090"), ()), SAFE))


@pytest.mark.parametrize(
    ("change", "knob", "gpu", "expected"),
    [
        ({}, "precision", "rtx-4090", ["bf16 autocast", "weights in bf16"]),
        ({}, "precision", "t4", ["fp16 autocast", "weights in fp16"]),
        ({"precision": "bf16"}, "precision", "rtx-4090", ["weights in bf16"]),
        ({"precision": "bf16"}, "precision", "t4", ["fp16 autocast", "weights in fp16"]),
        ({"precision": "fp16"}, "precision", "t4", ["weights in fp16"]),
        ({"precision": "pure-bf16"}, "precision", "rtx-4090", []),
        ({"precision": {"weights": "fp32"}}, "precision", "rtx-4090", []),
        ({"checkpointing": "all"}, "checkpointing", "rtx-4090", ["no checkpointing"]),
        ({"task": "inference"}, "checkpointing", "rtx-4090", []),
        ({"task": "inference"}, "optimizer", "rtx-4090", []),
        ({"optimizer": "sgd"}, "optimizer", "rtx-4090", []),
        ({"allocator_conf": "expandable_segments:True"}, "allocator", "rtx-4090", []),
        ({"allocator_conf": "max_split_size_mb:64"}, "allocator", "rtx-4090",
         ["expandable segments", "early collection of cached memory"]),
        ({}, "gradients", "rtx-4090", []),
        ({"set_to_none": False}, "gradients", "rtx-4090", ["gradients set to none"]),
        ({}, "loss", "rtx-4090", ["cross-entropy in 8 pieces, as Liger Kernel does"]),
        ({"loss": {"kind": "model", "chunks": 4}}, "loss", "rtx-4090", []),
        ({"loss": "mean"}, "loss", "rtx-4090", []),
        ({"task": "inference"}, "offload", "rtx-4090", []),
        ({"gradient_clipping": 1.0}, "offload", "rtx-4090", ["offload activations"]),
        ({"sizes": {"batch": 4}}, "gpus", "rtx-4090", ["2 GPUs", "4 GPUs"]),
        ({"sizes": {"batch": 3}}, "gpus", "rtx-4090", []),
        ({"gpus": 4}, "gpus", "rtx-4090", ["FSDP", "FSDP, weights kept gathered", "gradients in the buckets"]),
        ({"gpus": {"count": 2, "strategy": "fsdp"}}, "gpus", "rtx-4090", ["DDP", "FSDP, weights kept gathered"]),
        ({}, "freezing", "rtx-4090", ["freeze the first 16 blocks", "freeze the embeddings"]),
        ({"components": {"model": {**LLAMA["components"]["model"], "freeze": ["embed"]}}}, "freezing", "t4", []),
        ({"sizes": {"sequence": 1024}}, "sequence", "rtx-4090", ["sequence 768", "sequence 512"]),
        ({}, "sequence", "rtx-4090", []),
        ({}, "trained", "rtx-4090", ["LoRA of rank 16, bf16 base", "QLoRA of rank 16, 4-bit base"]),
        ({}, "trained", "t4", ["LoRA of rank 16, fp16 base", "QLoRA of rank 16, 4-bit base"]),
        ({"precision": "bf16"}, "trained", "t4", ["LoRA of rank 16, fp16 base", "QLoRA of rank 16, 4-bit base"]),
        (ADAPTED, "trained", "rtx-4090", ["bf16 base", "4-bit base"]),
        ({**ADAPTED, "precision": "pure-bf16"}, "trained", "rtx-4090", ["4-bit base"]),
        ({**ADAPTED, "precision": "fp32"}, "precision", "rtx-4090", ["bf16 autocast"]),
        ({"sizes": {"frames": 17}}, "frames", "rtx-4090", ["frames 9", "frames 5"]),
        ({"sizes": {"height": 256, "width": 256}}, "resolution", "t4",
         ["height 192, width 192", "height 128, width 128"]),
        ({"sizes": {"batch": 6}}, "batch", "t4",
         ["batch 3, accumulation 2", "batch 2, accumulation 3", "batch 1, accumulation 6"]),
    ],
)  # fmt: skip
def test_options(change: dict[str, Any], knob: str, gpu: str, expected: list[str]) -> None:
    assert texts({**LLAMA, **change}, knob, gpu) == expected


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ["torch.compile"]),
        ({"torch_compile": True}, ["no torch.compile"]),
    ],
)
def test_compiling_is_tried_on_request(change: dict[str, Any], expected: list[str]) -> None:
    job, card = make_job({**LLAMA, **change}, "job"), find_gpu("rtx-4090")
    assert "compile" not in options_for(job, card, ())
    assert [option.text for option in options_for(job, card, (), ("compile",))["compile"]] == expected


@pytest.mark.parametrize(
    ("knob", "change", "reason"),
    [
        ("compile", {"gpus": 2}, "on several GPUs"),
        ("compile", {"task": "inference"}, "a training job that describes its model"),
        ("attention", {"task": "inference"}, "a training job with a transformers model"),
        ("liger", {"task": "inference"}, "a transformers model that is trained"),
    ],
)
def test_what_is_asked_for_and_cannot_be_tried_is_said(
    knob: str, change: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vramcast.card.compiled.compiler.why_not", lambda: None)
    job, card = make_job({**LLAMA, **change}, "job"), find_gpu("rtx-4090")
    assert knob not in options_for(job, card, ())
    with pytest.raises(CannotPredict, match=f"--{knob} cannot be tried: .*{reason}"):
        options_for(job, card, (), (knob,))


def test_compiling_is_not_left_out_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramcast.card.compiled.compiler.why_not", lambda: "this torch has no CUDA")
    with pytest.raises(CannotPredict, match="--compile cannot be tried: this torch has no CUDA"):
        options_for(make_job(LLAMA, "job"), find_gpu("rtx-4090"), (), ("compile",))


@pytest.mark.parametrize(
    ("change", "gpu", "expected"),
    [
        ({"precision": "bf16"}, "rtx-4090", ["flash_attention_2", "eager"]),
        ({"precision": "fp32"}, "rtx-4090", ["eager"]),
        ({"precision": "fp16"}, "t4", ["eager"]),
    ],
)
def test_attention_is_tried_on_request(change: dict[str, Any], gpu: str, expected: list[str]) -> None:
    job, card = make_job({**LLAMA, **change}, "job"), find_gpu(gpu)
    assert "attention" not in options_for(job, card, ())
    found = options_for(job, card, (), ("attention",)).get("attention", [])
    assert [option.text for option in found] == [f"attn_implementation={way}" for way in expected]
    (key,) = found[0].changes
    assert key.endswith(".arguments.attn_implementation")


def test_liger_is_offered_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    job, card = make_job(LLAMA, "job"), find_gpu("rtx-4090")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CannotPredict, match="liger-kernel is not installed here"):
        options_for(job, card, (), ("liger",))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert [option.text for option in options_for(job, card, (), ("liger",))["liger"]] == ["Liger Kernel"]


def test_components_that_are_not_trained_can_wait_on_the_cpu() -> None:
    teacher = {"factory": "tests.jobs.tiny:mixer", "mode": "frozen", "inputs": ["x"]}
    job = {**TINY, "components": {"teacher": teacher, **TINY["components"]}, "gradient_clipping": 1.0}
    assert texts(job, "offload")[0] == "offload components between their calls"
    loss_network = {**teacher, "role": "loss-network"}
    job = {**job, "components": {"features": loss_network, **TINY["components"]}}
    assert not any("components" in text for text in texts(job, "offload")), "the backward pass goes through it"


def test_one_of_several_trained_components_is_frozen() -> None:
    other = {"factory": "tests.jobs.tiny:mixer", "inputs": ["x"]}
    job = {**TINY, "components": {"other": other, **TINY["components"]}}
    assert texts(job, "freezing") == ["freeze other", "freeze model"]
    assert texts({**job, "optimizer": {"components": ["other"]}}, "freezing") == ["freeze model"]


@pytest.mark.parametrize(
    ("job", "first", "second"),
    [
        ({**LLAMA, "sizes": {"batch": 4}}, "2 GPUs", "batch 2, accumulation 2"),
        (LLAMA, "freeze the embeddings", "LoRA of rank 16, bf16 base"),
        (LLAMA, "weights in bf16", "LoRA of rank 16, bf16 base"),
    ],
)
def test_what_excludes_each_other_is_not_combined(job: dict[str, Any], first: str, second: str) -> None:
    found = options_for(make_job(job, "job"), find_gpu("rtx-4090"), ())
    if not any(option.text == second for of_knob in found.values() for option in of_knob):
        pytest.skip("peft is not installed")
    taken = [{option.text for option in one.options} for one in combinations(found, LAST_RESORT)]
    assert any(first in one for one in taken) and any(second in one for one in taken)
    assert not any({first, second} <= one for one in taken)


def test_what_is_proposed_for_the_optimizer_on_the_cpu_is_a_job() -> None:
    pytest.importorskip("torchao")
    for one in combinations(options_for(make_job({**TINY, "sizes": {"batch": 4}}, "job"), find_gpu("t4"), ()), USUAL):
        with_overrides(make_job({**TINY, "sizes": {"batch": 4}}, "job"), one.changes)


def test_weights_in_bf16_are_not_given_fp32() -> None:
    assert texts(dict(TINY), "precision") == ["bf16 autocast"]


def test_the_global_batch_stays_global() -> None:
    job = {**{key: TINY[key] for key in ("components", "inputs")}, "gpus": {"count": 2, "global_batch": 8}}
    options = options_for(make_job(job, "job"), find_gpu("t4"), ())["batch"]
    assert options[0].changes == {"gpus.global_batch": 4, "accumulation": 2}


def test_a_step_of_its_own_has_no_knobs_but_the_allocator() -> None:
    job = make_job({"step": {"factory": "tests.jobs.tiny:step"}, "sizes": {"batch": 4}}, "job")
    assert list(options_for(job, find_gpu("rtx-4090"), ())) == ["allocator"]


def test_adapters_of_a_model_that_peft_does_not_know_are_in_all_linear_layers(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    for kind, wanted in (("phi3", {"components.model.lora.targets": "all-linear"}), ("llama", {})):
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))
        job = make_job({"components": {"model": {"transformers": str(folder)}}, "precision": "bf16"}, "job")
        lora = options_for(job, find_gpu("rtx-4090"), ())["trained"][0]
        base = {"components.model.mode": "lora", "components.model.dtype": "bf16"}
        assert lora.changes == {**base, **wanted}


def test_the_models_that_peft_knows_are_those_of_its_table() -> None:
    constants = pytest.importorskip("peft.utils.constants")
    assert models_with_usual_targets() == set(constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING)
