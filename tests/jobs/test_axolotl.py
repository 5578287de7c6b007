"""axolotl's configs, compared with what its documentation and its schemas say of each key."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from vramcast.errors import CannotPredict, UsageError
from vramcast.jobs.load import LoadedJob, load_job
from vramcast.jobs.readers import Request
from vramcast.prediction.predict import predict

needs_libraries = pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("bitsandbytes") is None, reason="builds a quantized model"
)

CONFIGS = Path(__file__).parent / "configs"
MODEL = str(CONFIGS / "llama-tiny")
QLORA = (CONFIGS / "axolotl_qlora.yaml").read_text()
FULL = "base_model: llama-tiny\nmicro_batch_size: 2\nsequence_len: 64\ndatasets: []\nlearning_rate: 1e-5\n"


def read(tmp_path: Path, text: str) -> LoadedJob:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return load_job(str(path), request=Request(model=MODEL))


def notes(loaded: LoadedJob) -> str:
    return " ".join(f"{note.topic}: {note.text}" for note in loaded.notes)


@needs_libraries
def test_qlora() -> None:
    loaded = load_job(str(CONFIGS / "axolotl_qlora.yaml"))
    job, model = loaded.job, loaded.job.components["model"]
    assert loaded.recognised_as == "transformers folder (LlamaForCausalLM) + axolotl config"
    assert (model.mode, model.quantization, model.class_name) == ("lora", "nf4", "LlamaForCausalLM")
    assert model.lora is not None
    assert (model.lora.rank, model.lora.alpha, model.lora.dropout) == (8, 16, 0.05)
    assert model.lora.targets == "all-linear", "lora_target_linear"
    assert (job.sizes, job.accumulation) == ({"batch": 2, "sequence": 128}, 4)
    assert (job.precision.autocast_dtype, job.precision.weights_dtype) == ("bf16", "bf16"), "bf16: auto"
    assert job.optimizer[0].name == "paged-adamw8bit"
    assert (job.checkpointing.scope, job.checkpointing.reentrant) == ("all", False)
    assert job.evaluation is not None
    assert job.evaluation.batch == 2, "eval_batch_size follows micro_batch_size"
    assert job.gradient_clipping == 1.0, "the Trainer's default"
    assert "samples are packed" in notes(loaded)
    assert predict(loaded, gpu="rtx-4090", steps=2).fits


@needs_libraries
def test_experts_and_dora(tmp_path: Path) -> None:
    model = read(tmp_path, QLORA + "quantize_moe_experts: true\npeft_use_dora: true\n").job.components["model"]
    assert model.quantize_experts and model.lora is not None and model.lora.dora
    in_eight_bits = QLORA.replace("adapter: qlora", "adapter: lora").replace(
        "load_in_8bit: false", "load_in_8bit: true"
    )
    in_eight_bits = in_eight_bits.replace("load_in_4bit: true", "load_in_4bit: false")
    with pytest.raises(CannotPredict, match="quantize_moe_experts"):
        read(tmp_path, in_eight_bits + "quantize_moe_experts: true\n")


def test_what_is_left_out_has_axolotls_defaults(tmp_path: Path) -> None:
    job = read(tmp_path, "base_model: llama-tiny\ndatasets: []\nlearning_rate: 1e-5\n").job
    assert (job.sizes, job.accumulation) == ({"batch": 1, "sequence": 512}, 1)
    assert job.optimizer[0].arguments == {"fused": True}, "adamw_torch_fused"
    assert job.checkpointing.scope == "none"
    assert job.evaluation is None, "val_set_size is 0"
    assert job.precision.autocast_dtype == "bf16"


def test_a_whole_model(tmp_path: Path) -> None:
    plain = read(tmp_path, FULL).job.components["model"]
    assert plain.keep_fp32 == ["*norm*", "*embed_tokens*", "*lm_head*"], "torch's own attention: these are in fp32"
    flash = read(tmp_path, FULL + "flash_attention: true\n").job.components["model"]
    assert (flash.keep_fp32, flash.arguments) == ([], {"attn_implementation": "sdpa"})
    some = read(tmp_path, FULL + "unfrozen_parameters: ['^lm_head.weight$', 'model.layers.3.*']\n")
    assert some.job.components["model"].train_only == ["lm_head.weight", "model.layers.3*"]


@pytest.mark.parametrize(
    ("line", "weights", "autocast"),
    [
        ("bf16: true", "bf16", "bf16"), ("fp16: true", "fp16", "fp16"), ("bf16: false", "fp32", "none"),
        ("bf16: false\nbfloat16: true", "bf16", "none"), ("bf16: false\nfloat16: true", "fp16", "none"),
    ],
)  # fmt: skip
def test_precision(tmp_path: Path, line: str, weights: str, autocast: str) -> None:
    precision = read(tmp_path, f"{FULL}{line}\n").job.precision
    assert (precision.weights_dtype, precision.autocast_dtype) == (weights, autocast)


def test_batch_size_without_accumulation(tmp_path: Path) -> None:
    assert read(tmp_path, FULL + "batch_size: 16\n").job.accumulation == 8, "batch_size // micro_batch_size"


def test_preferences(tmp_path: Path) -> None:
    job = read(tmp_path, FULL + "rl: dpo\n").job
    assert (job.components["reference"].copy_of, job.components["reference"].mode) == ("model", "frozen")
    assert job.loss[0].kind == "preference"
    assert job.inputs["input_ids"].shape == ["2 * batch", "sequence"]
    adapters = read(tmp_path, FULL + "rl: dpo\nadapter: lora\nlora_r: 8\n").job
    assert adapters.components["reference"].same_as == "model", "the same weights without their adapters"


@pytest.mark.parametrize(
    ("kind", "losses", "reference"),
    [
        ("orpo", ["preference", "likelihood"], None), ("simpo", ["preference"], None),
        ("kto", ["desirability"], "model"), ("gdpo", ["policy"], None),
    ],
)  # fmt: skip
def test_other_preferences(tmp_path: Path, kind: str, losses: list[str], reference: str | None) -> None:
    job = read(tmp_path, f"{FULL}rl: {kind}\n").job
    assert [loss.kind for loss in job.loss] == losses
    assert (job.components["reference"].copy_of if "reference" in job.components else None) == reference


@pytest.mark.skipif(find_spec("transformers") is None, reason="builds a transformers model")
def test_likelihood_of_chosen_texts_and_rewards_run(tmp_path: Path) -> None:
    for line in ("rl: orpo", "reward_model: true"):
        assert predict(read(tmp_path, f"{FULL}{line}\n"), gpu="rtx-4090", steps=2).fits


def test_generated_text(tmp_path: Path) -> None:
    text = "rl: grpo\ntrl:\n  max_completion_length: 32\n  use_vllm: true\n  vllm_mode: colocate\n"
    job = read(tmp_path, FULL + text + "vllm: {gpu_memory_utilization: 0.4}\n").job
    assert job.target.fraction == 0.6
    assert job.components["model"].options == {"logits_to_keep": 33}
    assert list(job.components) == ["model"], "beta is 0, so there is no reference"
    with_reference = read(tmp_path, FULL + text + "rl_beta: 0.1\n").job
    assert with_reference.components["reference"].copy_of == "model"


def test_offload_of_activations(tmp_path: Path) -> None:
    job = read(tmp_path, FULL + "gradient_checkpointing: true\nactivation_offloading: legacy\n").job
    assert (job.checkpointing.scope, job.offload.activations) == ("all", True)


@pytest.mark.parametrize("line", ["liger_fused_linear_cross_entropy: true", "cut_cross_entropy: true"])
def test_a_fused_loss(tmp_path: Path, line: str) -> None:
    assert read(tmp_path, f"{FULL}{line}\n").job.loss[0].chunks == 16, "1000 words over a width of 64"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("optimizer: adamw_torchh", "optimizer: there is no 'adamw_torchh'; did you mean 'adamw_torch'"),
        ("micro_batch_sizes: 2", "micro_batch_sizes: there is no such key; did you mean 'micro_batch_size'"),
        ("adapter: qlora\nlora_r: 8", "load_in_4bit: adapter: qlora needs it to be true"),
        ("adapter: lora", "lora_r: this key is needed"),
        ("load_in_8bit: true", "adapter: load_in_8bit and load_in_4bit need one"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path: Path, line: str, message: str) -> None:
    text = FULL.replace("micro_batch_size: 2\n", "") if "sizes" in line else FULL
    with pytest.raises(UsageError, match=message):
        read(tmp_path, f"{text}{line}\n")


@pytest.mark.parametrize(
    "line", ["rl: ebft", "optimizer: muon", "qat: {weight_dtype: int4}", "tensor_parallel_size: 2", "lisa_n_layers: 4"]
)
def test_what_is_not_modelled(tmp_path: Path, line: str) -> None:
    with pytest.raises(CannotPredict, match=line.partition(":")[0]):
        read(tmp_path, f"{FULL}{line}\n")


def test_numbers_in_patterns_of_what_learns(tmp_path: Path) -> None:
    text = f"{FULL}unfrozen_parameters:\n  - ^lm_head.weight$\n  - model.layers.4[4-9]+.block.gate\n  - blocks.[0-7].\n"
    assert read(tmp_path, text).job.components["model"].train_only == [
        "lm_head.weight", "model.layers.4[4-9].block.gate*", "model.layers.4[4-9][4-9].block.gate*", "blocks.[0-7].*"
    ]  # fmt: skip


def test_weights_that_are_brought_into_a_whole_dtype(tmp_path: Path) -> None:
    text = f"{FULL}model_quantization_config: Mxfp4Config\n"
    whole = read(tmp_path, f"{text}model_quantization_config_kwargs: {{dequantize: true}}\n")
    assert whole.job.components["model"].config["quantization_config"] is None
    with pytest.raises(CannotPredict, match="dequantize: true"):
        read(tmp_path, text)


def test_workers_of_ray_are_cards(tmp_path: Path) -> None:
    assert read(tmp_path, f"{FULL}use_ray: true\nray_num_workers: 4\n").job.gpus.count == 4
