"""LLaMA-Factory's configs, compared with the defaults of its dataclasses (hparams) and what its loader does."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from vramcast.errors import CannotPredict, UsageError
from vramcast.jobs.load import LoadedJob, load_job
from vramcast.jobs.readers import Request
from vramcast.prediction.predict import predict

needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="builds a transformers model")

CONFIGS = Path(__file__).parent / "configs"
MODEL = str(CONFIGS / "llama-tiny")
BASE = "model_name_or_path: x/y\nstage: sft\ndo_train: true\ntemplate: llama3\nbf16: true\n"


def read(tmp_path: Path, text: str) -> LoadedJob:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return load_job(str(path), request=Request(model=MODEL))


def test_what_is_left_out_has_its_defaults(tmp_path: Path) -> None:
    loaded = read(tmp_path, BASE + "finetuning_type: lora\n")
    job, model = loaded.job, loaded.job.components["model"]
    assert loaded.recognised_as.endswith("LLaMA-Factory config")
    assert job.sizes == {"batch": 8, "sequence": 2048}, "the Trainer's batch, cutoff_len"
    assert model.lora is not None
    assert (model.lora.rank, model.lora.alpha, model.lora.dropout, model.lora.targets) == (8, 16, 0.0, "all-linear")
    assert (job.checkpointing.scope, job.checkpointing.reentrant) == ("all", True), "use_reentrant_gc"
    assert (job.precision.autocast_dtype, job.precision.weights_dtype) == ("bf16", "bf16")


def test_whole_models_learn_in_fp32(tmp_path: Path) -> None:
    full = read(tmp_path, BASE + "finetuning_type: full\n").job
    assert (full.components["model"].mode, full.precision.weights_dtype) == ("trained", "fp32")
    pure = read(tmp_path, BASE.replace("bf16", "pure_bf16") + "finetuning_type: full\n").job
    assert (pure.precision.weights_dtype, pure.precision.autocast_dtype) == ("bf16", "none")


def test_adapters(tmp_path: Path) -> None:
    text = "finetuning_type: lora\nlora_target: q_proj, v_proj\nadditional_target: lm_head\nlora_rank: 4\n"
    model = read(tmp_path, BASE + text + "quantization_bit: 4\nflash_attn: fa2\n").job.components["model"]
    assert model.lora is not None
    assert (model.lora.targets, model.lora.trained_modules) == (["q_proj", "v_proj"], ["lm_head"])
    assert (model.quantization, model.arguments) == ("nf4", {"attn_implementation": "sdpa"})


@needs_transformers
def test_frozen_layers(tmp_path: Path) -> None:
    loaded = read(tmp_path, BASE + "finetuning_type: freeze\nfreeze_trainable_layers: 1\ncutoff_len: 64\n")
    model = loaded.job.components["model"]
    assert (model.train_only, model.keep_fp32) == (["*.3.*"], ["*.3.*"]), "the last of four, in fp32"
    result = predict(loaded, gpu="rtx-4090", steps=2)
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 176 + 2 * 64
    assert result.parameters.trained_count == layer
    first = read(tmp_path, BASE + "finetuning_type: freeze\nfreeze_trainable_layers: -2\n").job.components["model"]
    assert first.train_only == ["*.0.*", "*.1.*"]


@needs_transformers
def test_preferences(tmp_path: Path) -> None:
    text = BASE.replace("sft", "dpo") + "cutoff_len: 64\nper_device_train_batch_size: 2\n"
    lora = read(tmp_path, text + "finetuning_type: lora\n")
    assert lora.job.components["reference"].same_as == "model"
    assert (lora.job.loss[0].kind, lora.job.loss[0].upcast) == ("preference", True)
    assert predict(lora, gpu="rtx-4090", steps=2).fits
    full = read(tmp_path, text + "finetuning_type: full\n").job
    assert full.components["reference"].copy_of == "model"
    simple = read(tmp_path, text + "finetuning_type: full\npref_loss: simpo\n").job
    assert list(simple.components) == ["model"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("finetuning_type: lorra\n", "finetuning_type: there is no 'lorra'; did you mean 'lora'"),
        ("finetuning_type: full\nquantization_bit: 4\n", "quantization_bit: finetuning_type: full cannot"),
        ("finetuning_type: lora\nlora_ranks: 4\n", "lora_ranks: there is no such key; did you mean 'lora_rank'"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(tmp_path, BASE + text)


@pytest.mark.parametrize("line", ["use_galore: true", "use_unsloth: true", "quantization_bit: 3", "fp8: true"])
def test_what_is_not_modelled(tmp_path: Path, line: str) -> None:
    with pytest.raises(CannotPredict, match=line.partition(":")[0]):
        read(tmp_path, f"{BASE}finetuning_type: lora\n{line}\n")


def test_files_that_do_not_train(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="for inference or export"):
        read(tmp_path, "model_name_or_path: x/y\ntemplate: llama3\ninfer_backend: vllm\n")


def test_what_no_reader_knows_is_refused(tmp_path: Path) -> None:
    """Its format of version 1 shares names with TrainingArguments, and means something else."""
    text = "model: x/y\npeft_config: {name: lora, r: 16}\nmicro_batch_size: 1\noutput_dir: out\nlearning_rate: 1e-5\n"
    with pytest.raises(UsageError, match="not recognised as a config"):
        read(tmp_path, text + "max_steps: 10\ntrain_dataset: a.yaml\ndist_config: {name: fsdp2}\n")
