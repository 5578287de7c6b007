"""TRL's trainers and unsloth, compared with the defaults of their config classes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from vramcast.errors import CannotPredict, UsageError
from vramcast.jobs.load import LoadedJob, load_job
from vramcast.jobs.readers import Request
from vramcast.prediction.predict import predict

needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="builds a transformers model")
needs_bitsandbytes = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="builds a quantized model")

CONFIGS = Path(__file__).parent / "configs"
MODEL = str(CONFIGS / "llama-tiny")


def command(text: str) -> LoadedJob:
    return load_job(None, request=Request(arguments=tuple(word.format(model=MODEL) for word in text.split())))


def test_defaults_of_sft() -> None:
    loaded = command("trl sft --model_name_or_path {model} --dataset_name some/texts")
    job = loaded.job
    assert loaded.recognised_as.endswith("command: TRL config (SFT)")
    assert job.sizes == {"batch": 8, "sequence": 1024}, "max_length of SFTConfig"
    assert (job.precision.weights_dtype, job.precision.autocast_dtype) == ("fp32", "bf16"), "ModelConfig, _BaseConfig"
    assert job.checkpointing.scope == "all"
    assert (job.loss[0].chunk_tokens, job.loss[0].recompute) == (256, True), "its loss in pieces"
    usual = command("trl sft --model_name_or_path {model} --loss_type nll --bf16 false --gradient_checkpointing false")
    assert (usual.job.loss, usual.job.precision.autocast_dtype) == ([], "none")
    assert usual.job.checkpointing.scope == "none"


def test_adapters_of_sft() -> None:
    model = command("trl sft --model_name_or_path {model} --use_peft --dtype bfloat16").job.components["model"]
    assert model.lora is not None
    assert (model.lora.rank, model.lora.alpha, model.lora.dropout, model.lora.dtype) == (16, 32, 0.05, "bf16")
    quantized = command("trl sft --model_name_or_path {model} --use_peft --load_in_4bit").job.components["model"]
    assert quantized.lora is not None
    assert (quantized.quantization, quantized.lora.dtype) == ("nf4", "bf16")


@needs_transformers
def test_preferences_have_a_reference() -> None:
    whole = command("accelerate launch trl/scripts/dpo.py --model_name_or_path {model} --max_length 64")
    assert whole.job.components["reference"].copy_of == "model"
    adapters = command("trl dpo --model_name_or_path {model} --max_length 64 --use_peft")
    assert adapters.job.components["reference"].same_as == "model"
    known = command("trl dpo --model_name_or_path {model} --max_length 64 --precompute_ref_log_probs")
    assert list(known.job.components) == ["model"]
    peaks = [predict(one, gpu="rtx-4090", steps=2).peak_allocated_bytes for one in (whole, known)]
    weights = 4 * 312_896
    logits = 2 * 8 * 2 * 64 * 1000
    assert peaks[0] - peaks[1] >= weights + logits, "a second model, and what it returns"


@needs_transformers
def test_texts_that_are_wanted_or_not() -> None:
    text = "trl kto --model_name_or_path {model} --max_length 64 --per_device_train_batch_size 2"
    adapters = command(f"{text} --use_peft")
    assert adapters.job.components["reference"].same_as == "model"
    assert adapters.job.inputs["input_ids"].shape == ["batch", "sequence"], "each for itself"
    pairs = command(text.replace("kto", "dpo") + " --use_peft")
    one, two = (predict(loaded, gpu="rtx-4090", steps=2) for loaded in (adapters, pairs))
    assert one.peak_allocated_bytes < two.peak_allocated_bytes
    assert any(note.topic == "KTO" for note in adapters.notes)


@needs_transformers
@pytest.mark.parametrize("start", ["trl reward", "python examples/scripts/reward_modeling.py"])
def test_a_reward_model_has_one_score_for_a_text(start: str) -> None:
    loaded = command(f"{start} --model_name_or_path {{model}} --max_length 64 --use_peft --lora_r 4")
    assert loaded.job.loss[0].kind == "ranking"
    result = predict(loaded, gpu="rtx-4090", steps=2)
    assert result.fits
    width = 64
    adapters = 4 * 2 * 2 * 4 * (width + width)
    assert result.parameters.trained_count in range(width, adapters + width + 1), "adapters and the head, no logits"


@needs_transformers
def test_generated_text() -> None:
    loaded = load_job(str(CONFIGS / "trl_grpo.yaml"))
    job = loaded.job
    assert loaded.recognised_as.endswith("TRL config (GRPO)")
    assert job.sizes == {"batch": 4, "sequence": 128}, "prompt and completion"
    assert job.target.fraction == 0.75, "vLLM has a quarter of the card"
    assert job.components["model"].options == {"logits_to_keep": 65}
    assert job.components["reference"].copy_of == "model", "beta is not 0"
    assert predict(loaded, gpu="rtx-4090", steps=2).fits
    asleep = command("trl grpo --model_name_or_path {model} --use_vllm --vllm_enable_sleep_mode")
    assert asleep.job.target.fraction is None
    assert asleep.job.sizes["sequence"] == 512 + 512


@pytest.mark.parametrize(
    ("script", "losses"),
    [
        ("orpo.py", ["preference", "likelihood"]),
        ("cpo.py", ["preference", "likelihood"]),
        ("cpo.py --loss_type simpo --cpo_alpha 0", ["preference"]),
    ],
)
def test_preferences_without_a_reference(script: str, losses: list[str]) -> None:
    name, *flags = script.split(" ", 1)
    loaded = command(f"python examples/scripts/{name} --model_name_or_path {{model}} {' '.join(flags)}")
    assert list(loaded.job.components) == ["model"] and [one.kind for one in loaded.job.loss] == losses
    assert loaded.job.inputs["input_ids"].shape == ["2 * batch", "sequence"]
    assert not any("cpo_alpha" in note.text for note in loaded.notes), "nothing of it is left out"


def test_a_file_beside_the_flags(tmp_path: Path) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text(f"model_name_or_path: {MODEL}\nper_device_train_batch_size: 4\nmax_length: 256\n")
    job = command(f"trl sft --config {path} --max_length 128").job
    assert job.sizes == {"batch": 4, "sequence": 128}, "flags win"


def test_other_trainers_are_not_modelled() -> None:
    with pytest.raises(CannotPredict, match="gkd trains with a second model"):
        command("trl gkd --model_name_or_path {model}")
    with pytest.raises(CannotPredict, match="reward_model_name_or_path: a second model on the card"):
        command("trl grpo --model_name_or_path {model} --reward_model_name_or_path a/b")
    with pytest.raises(CannotPredict, match="teacher_model_name: a second model on the card"):
        command("python train.py --model_name_or_path {model} --teacher_model_name a/b --learning_rate 1e-5")
    with pytest.raises(UsageError, match="loss_type: there is no 'nlll'"):
        command("trl sft --model_name_or_path {model} --loss_type nlll")


@needs_transformers
@needs_bitsandbytes
def test_unsloth() -> None:
    loaded = load_job(str(CONFIGS / "unsloth_lora.yaml"))
    job, model = loaded.job, loaded.job.components["model"]
    assert loaded.recognised_as.endswith("unsloth config")
    assert (job.sizes, job.accumulation) == ({"batch": 2, "sequence": 128}, 4)
    assert model.lora is not None
    assert (model.quantization, model.lora.rank) == ("nf4", 16)
    assert model.lora.targets == ["q_proj", "k_proj", "v_proj", "o_proj"], "finetune_mlp_modules: false"
    assert (job.checkpointing.scope, job.checkpointing.reentrant, job.offload.activations) == ("all", True, True)
    assert job.optimizer[0].name == "adamw8bit"
    assert predict(loaded, gpu="rtx-4090", steps=2).fits


def test_defaults_of_unsloths_script() -> None:
    job = command("python unsloth-cli.py --model_name {model}").job
    assert (job.sizes, job.accumulation) == ({"batch": 2, "sequence": 2048}, 4)
    lora = job.components["model"].lora
    assert lora is not None
    assert (lora.rank, lora.alpha) == (16, 16)
    assert job.components["model"].quantization == "none"


def test_a_whole_model_with_unsloth(tmp_path: Path) -> None:
    path = tmp_path / "full.yaml"
    text = (CONFIGS / "unsloth_lora.yaml").read_text().replace("training_type: lora", "training_type: full")
    path.write_text(text.replace('"unsloth"', '"none"'))
    job = load_job(str(path), request=Request(model=MODEL)).job
    assert (job.components["model"].mode, job.checkpointing.scope) == ("trained", "none")
    path.write_text(text + "  use_dora: true\n")
    with pytest.raises(CannotPredict, match="use_dora"):
        load_job(str(path), request=Request(model=MODEL))
