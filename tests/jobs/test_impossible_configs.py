"""Model folders whose config.json says what no model can have, or that the weights are quantized."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramcast.cli.main import main
from vramcast.errors import UsageError
from vramcast.jobs.folders import check_sizes

FOLDERS = Path(__file__).parent / "folders"
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 1024,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1000,
    "max_position_embeddings": 128,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_head": 4, "n_layer": 2}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


def _folder(tmp_path: Path, config: dict[str, Any]) -> str:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


@pytest.mark.parametrize(
    ("config", "key", "value"),
    [
        (GPT2, "n_layer", -1), (GPT2, "n_layer", 0), (GPT2, "n_embd", -64), (GPT2, "n_head", 3), (GPT2, "n_head", 2.0),
        (GPT2, "n_positions", "many"), (GPT2, "vocab_size", True), (LLAMA, "num_hidden_layers", -1),
        (LLAMA, "num_hidden_layers", 10**6), (LLAMA, "hidden_size", 0), (LLAMA, "hidden_size", 10**40),
        (LLAMA, "intermediate_size", -8), (LLAMA, "num_attention_heads", 7), (LLAMA, "num_key_value_heads", 3),
        (LLAMA, "head_dim", -64), (LLAMA, "vocab_size", 0), (LLAMA, "vocab_size", 31.5),
        (LLAMA, "num_local_experts", -2),
    ],
)  # fmt: skip
def test_impossible_sizes(
    config: dict[str, Any], key: str, value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    folder = _folder(tmp_path, {**config, key: value})
    assert main(["predict", folder, "--gpu", "rtx-4090", "--json"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["exit_code"] == 2 and key in json.loads(out)["error"]
    assert "config.json" in err
    assert key in err


def test_a_part_of_a_config_is_looked_at_too() -> None:
    with pytest.raises(UsageError, match=r"x: text_config\.num_hidden_layers: -2 is below zero"):
        check_sizes({"text_config": {"num_hidden_layers": -2}}, "x")


@pytest.mark.parametrize("path", sorted(FOLDERS.rglob("config.json")), ids=lambda path: path.parent.name)
def test_real_configs_are_possible(path: Path) -> None:
    check_sizes(json.loads(path.read_text()), str(path))


@pytest.mark.parametrize(
    "config",
    [
        {"vision_feature_layer": -2, "image_token_index": -200, "pad_token_id": -1},  # LLaVA
        {"type_vocab_size": 0, "max_relative_positions": -1, "hidden_size": 768},  # DeBERTa
        {"hidden_size": 3072, "num_attention_heads": 7, "head_dim": 256},  # Gemma: heads have a size of their own
        {"d_model": 512, "num_heads": 6, "d_kv": 64, "num_decoder_layers": None},  # T5
        {"num_attention_heads": [1, 2, 5, 8], "hidden_sizes": [64, 128], "attention_head_dim": [5, 10]},
        {"sample_size": None, "cross_attention_dim": None, "block_out_channels": [320, 640]},
        {"sample_size": [60, 90], "n_inner": None},
    ],
)
def test_what_looks_odd_and_is_right(config: dict[str, Any]) -> None:
    check_sizes(config, "x")


def _weights(capsys: pytest.CaptureFixture[str], *argv: str) -> int:
    assert main(["predict", *argv, "--gpu", "rtx-4090", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    parts: dict[str, int] = document["prediction"]["account"]["parts"]
    return parts["weights"]


def test_weights_that_are_stored_in_4_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("peft")
    frozen = ("--set", "components.model.mode=lora", "--set", "precision.weights=bf16", "--batch", "1", "--seq", "64")
    whole = _weights(capsys, _folder(tmp_path, LLAMA), *frozen)
    said = _weights(capsys, str(tmp_path), *frozen, "--set", "components.model.quantization=nf4")
    stored = _weights(
        capsys, _folder(tmp_path, {**LLAMA, "quantization_config": {**NF4, "bnb_4bit_use_double_quant": True}}), *frozen
    )
    plain = _weights(capsys, _folder(tmp_path, {**LLAMA, "quantization_config": NF4}), *frozen)
    linear = 2 * (4 * 512 * 512 + 3 * 512 * 1024)
    assert stored == said
    assert whole - stored == pytest.approx(linear * 2 - linear * (0.5 + 1 / 64), rel=0.02)
    # Without nested quantization the scale of every 64 weights is a number of 4 bytes instead of 1.
    assert plain - stored == pytest.approx(linear * 3 / 64, rel=0.1)


def test_quantized_weights_are_not_trained_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    folder = _folder(tmp_path, {**LLAMA, "quantization_config": NF4})
    assert main(["predict", folder, "--gpu", "rtx-4090"]) == 2
    assert "components.model.mode=lora" in capsys.readouterr().err


@pytest.mark.parametrize(
    "said",
    [
        {"quant_method": "gptq", "bits": 4}, {"quant_method": "awq", "bits": 4}, {"quant_method": "fp8"},
        {"quant_method": "compressed-tensors"}, {"bits": 4}, {"quant_method": "mxfp4"},
    ],
)  # fmt: skip
def test_other_quantized_weights_are_not_guessed(
    said: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    folder = _folder(tmp_path, {**LLAMA, "quantization_config": said})
    frozen = ("--set", "components.model.mode=lora", "--batch", "1", "--seq", "64", "--gpu", "rtx-4090")
    assert main(["predict", folder, *frozen]) == 3
    err = capsys.readouterr().err
    assert "quantization_config" in err
    assert "not modelled" in err
    assert main(["predict", folder, *frozen, "--set", "components.model.config={quantization_config: null}"]) == 0
