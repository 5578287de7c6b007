"""ms-swift's commands and files, compared with the defaults of its argument classes."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from vramcast.errors import CannotPredict
from vramcast.jobs.load import LoadedJob, load_job
from vramcast.jobs.readers import Request
from vramcast.prediction.predict import predict

needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="builds a transformers model")

CONFIGS = Path(__file__).parent / "configs"
MODEL = str(CONFIGS / "llama-tiny")
SHORT = "swift sft --model {model} --tuner_type full --max_length 64 --gradient_accumulation_steps 1"


def command(text: str) -> LoadedJob:
    return load_job(None, request=Request(arguments=tuple(word.format(model=MODEL) for word in text.split())))


def test_a_script() -> None:
    loaded = load_job(str(CONFIGS / "swift_lora.sh"))
    job, model = loaded.job, loaded.job.components["model"]
    assert loaded.recognised_as.endswith("command: ms-swift config")
    assert model.transformers == MODEL, "model, and not model_name"
    assert (job.sizes, job.gpus.count) == ({"batch": 2, "sequence": 128}, 2)
    assert job.accumulation == 4, "16 samples a step over two GPUs"
    assert model.lora is not None
    assert (model.lora.rank, model.lora.alpha, model.lora.dropout, model.lora.targets) == (8, 32, 0.05, "all-linear")
    assert (job.precision.weights_dtype, job.precision.autocast_dtype) == ("bf16", "bf16")
    assert job.checkpointing.scope == "all", "its default"
    assert job.evaluation is not None, "split_dataset_ratio"


def test_defaults() -> None:
    job = command("swift sft --model {model} --tuner_type full").job
    assert (job.sizes, job.accumulation) == ({"batch": 1}, 16)
    assert (job.components["model"].mode, job.evaluation) == ("trained", None)
    fp32 = command("swift sft --model {model} --tuner_type full --torch_dtype float32").job.precision
    assert (fp32.weights_dtype, fp32.autocast_dtype) == ("fp32", "fp16")


def test_a_second_model() -> None:
    adapters = command("swift rlhf --rlhf_type dpo --model {model} --tuner_type lora --max_length 64").job
    assert adapters.components["reference"].same_as == "model"
    grpo = command(
        "swift rlhf --rlhf_type grpo --model {model} --tuner_type full --max_length 64 --use_vllm true "
        "--vllm_mode colocate --vllm_gpu_memory_utilization 0.5 --max_completion_length 64"
    ).job
    assert (grpo.sizes["sequence"], grpo.target.fraction) == (128, 0.5)
    assert grpo.components["reference"].copy_of == "model", "beta is 0.04"


def test_sharding_by_name() -> None:
    gpus = command("swift sft --model {model} --tuner_type full --deepspeed zero3").job.gpus
    assert (gpus.strategy, gpus.zero_stage) == ("deepspeed", 3)


@pytest.mark.parametrize(
    "flag",
    [
        "--tuner_type adalora",
        "--tuner_type full --optimizer muon",
        "--rlhf_type grpo --teacher_model other",
        "--tuner_type lora --quant_bits 4 --quant_method hqq",
    ],
)
def test_what_is_not_modelled(flag: str) -> None:
    with pytest.raises(CannotPredict, match=flag.split()[-2].removeprefix("--").replace("quant_method", "quant_bits")):
        command(f"swift sft --model {{model}} {flag}")


def test_megatron_is_refused_by_its_name(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("NPROC_PER_NODE=2 \\\nmegatron sft \\\n    --model Qwen/Qwen3-8B --micro_batch_size 4\n")
    with pytest.raises(CannotPredict, match=r"train.sh:2: megatron sft: .*`swift sft`"):
        load_job(str(script))


def test_parts_that_see_stay_frozen_unless_said_otherwise(tmp_path: Path) -> None:
    text = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 4, "vocab_size": 1000, "num_key_value_heads": 4}
    seen = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    seen |= {"num_attention_heads": 4, "image_size": 32, "patch_size": 8}
    config = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "image_token_index": 999}
    (tmp_path / "config.json").write_text(json.dumps({**config, "text_config": text, "vision_config": seen}))

    def read(flags: str) -> LoadedJob:
        words = tuple(f"swift sft --model x --max_length 64 --torch_dtype float32 {flags}".split())
        return load_job(None, request=Request(model=str(tmp_path), arguments=words))

    frozen = read("--tuner_type full")
    assert frozen.job.components["model"].freeze == ["vision", "multi_modal_projector"]
    every = read("--tuner_type full --freeze_vit false --freeze_aligner false")
    assert every.job.components["model"].freeze == []
    adapters = read("--tuner_type lora").job.components["model"].lora
    assert adapters is not None and "language_model" in str(adapters.targets)


@needs_transformers
@pytest.mark.parametrize(
    ("task", "texts", "has_head"),
    [("embedding", 2, False), ("reranker", 8, False), ("generative_reranker", 8, True), ("causal_lm", 0, True)],
)
def test_what_is_learned_is_not_always_the_next_word(task: str, texts: int, has_head: bool) -> None:
    loaded = command(f"{SHORT} --task_type {task}")
    assert not texts or loaded.job.inputs["input_ids"].shape == [f"{texts} * batch", "sequence"]
    modules = predict(loaded, gpu="rtx-4090", steps=1).trace.modules
    assert any("lm_head" in name for name in modules) == has_head


@needs_transformers
def test_labels_beside_adapters() -> None:
    loaded = command(f"{SHORT.replace('full', 'lora')} --task_type seq_cls --num_labels 5")
    assert loaded.job.components["model"].config["num_labels"] == 5
    assert any(name.endswith("score.modules_to_save.default") for name in predict(loaded, gpu="rtx-4090").trace.modules)
