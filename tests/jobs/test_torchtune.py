"""torchtune's configs, compared with its documentation and its model builders."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from vramcast.errors import CannotPredict, UsageError
from vramcast.jobs.load import LoadedJob, load_job
from vramcast.jobs.readers import Request
from vramcast.jobs.readers.torchtune_models import NAMES, config_of, plain_name
from vramcast.prediction.predict import predict

needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="builds a transformers model")

CONFIGS = Path(__file__).parent / "configs"
MODEL = str(CONFIGS / "llama-tiny")
LORA = (CONFIGS / "torchtune_lora.yaml").read_text()
FULL = LORA.replace("lora_llama3_2_1b", "llama3_2_1b")


def read(tmp_path: Path, text: str, model: str | None = None) -> LoadedJob:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return load_job(str(path), request=Request(model=model))


def test_adapters() -> None:
    loaded = load_job(str(CONFIGS / "torchtune_lora.yaml"))
    job, model = loaded.job, loaded.job.components["model"]
    assert loaded.recognised_as == "torchtune config"
    assert (model.config["num_hidden_layers"], model.config["hidden_size"]) == (16, 2048)
    assert model.config["tie_word_embeddings"] is True
    assert model.lora is not None
    assert model.lora.targets == ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert (model.lora.rank, model.lora.alpha, model.lora.dtype) == (64, 128, "bf16")
    assert (job.sizes, job.accumulation) == ({"batch": 4, "sequence": 512}, 8)
    assert (job.precision.weights_dtype, job.precision.autocast_dtype) == ("bf16", "none"), "all of it is bf16"
    assert job.optimizer[0].arguments == {"fused": True}
    assert job.gradient_clipping is None
    assert (job.loss[0].chunks, job.loss[0].recompute) == (8, False), "num_output_chunks of LinearCrossEntropyLoss"
    assert job.evaluation is not None
    assert job.evaluation.batch == 4, "${batch_size}"


@needs_transformers
def test_with_a_folder(tmp_path: Path) -> None:
    loaded = read(tmp_path, LORA.replace("512", "64"), MODEL)
    assert loaded.job.components["model"].transformers == MODEL
    assert predict(loaded, gpu="rtx-4090", steps=2).fits
    beside = read(tmp_path, FULL.replace("there/is/none", MODEL))
    assert beside.job.components["model"].transformers == MODEL, "checkpoint_dir with a config.json"


def test_a_quantized_base(tmp_path: Path) -> None:
    model = read(tmp_path, LORA.replace("lora_llama3_2_1b", "qlora_llama3_2_1b")).job.components["model"]
    assert model.quantization == "nf4"


def test_adapters_by_length_and_direction(tmp_path: Path) -> None:
    model = read(tmp_path, LORA.replace("lora_rank:", "use_dora: true\n  lora_rank:")).job.components["model"]
    assert model.lora is not None and model.lora.dora


@pytest.mark.parametrize(
    ("name", "of_job"),
    [("bitsandbytes.optim.PagedAdamW8bit", "paged-adamw8bit"), ("bitsandbytes.optim.PagedAdamW", "paged-adamw")],
)
def test_optimizers(tmp_path: Path, name: str, of_job: str) -> None:
    assert read(tmp_path, FULL.replace("torch.optim.AdamW", name)).job.optimizer[0].name == of_job


def test_preferences(tmp_path: Path) -> None:
    text = LORA.replace("torchtune.modules.loss.LinearCrossEntropyLoss", "torchtune.rlhf.loss.DPOLoss")
    job = read(tmp_path, text).job
    assert (job.loss[0].kind, job.components["reference"].same_as) == ("preference", "model")


def test_names_of_builders() -> None:
    assert plain_name("qlora_qwen2_5_7b_base") == "qwen2_5_7b"
    assert plain_name("qwen3_8b_instruct") == "qwen3_8b", "its q is no prefix"
    for name in NAMES:
        config = config_of(name)
        assert config is not None
        assert config["num_attention_heads"] % config["num_key_value_heads"] == 0


@needs_transformers
@pytest.mark.parametrize(("name", "count"), [("llama2_7b", 6_738_415_616), ("qwen2_5_0_5b", 494_032_768)])
def test_sizes_are_those_of_the_published_models(name: str, count: int) -> None:
    import torch
    import transformers

    config = config_of(name)
    assert config is not None
    with torch.device("meta"):
        class_name = config["architectures"][0]
        made = transformers.AutoConfig.for_model(**config)
        model = getattr(transformers, class_name)(made)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lora_llama3_2_1b", "lora_llama3_2_1bb", "model._component_: the sizes of .* did you mean 'llama3_2_1b'"),
        ("dtype: bf16", "dtype: bf17", "dtype: there is no 'bf17'; did you mean 'bf16'"),
        ("batch_size: 4", "batch_size: four", "batch_size: a whole number is needed"),
        (
            "gradient_accumulation_steps: 8",
            "gradient_acumulation_steps: 8",
            "did you mean 'gradient_accumulation_steps'",
        ),
    ],
)
def test_mistakes(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(tmp_path, LORA.replace(old, new))


@pytest.mark.parametrize("line", ["tensor_parallel_dim: 2", "ac_mode: selective"])
def test_what_is_not_modelled(tmp_path: Path, line: str) -> None:
    with pytest.raises(CannotPredict, match=line.partition(":")[0]):
        read(tmp_path, f"{LORA}{line}\n")
