"""Ten well-known cases: what is proposed first is what people who train such models are told to do.

Each case names its source. What counts is the kind of answer; bytes depend on lengths and libraries.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vramcast
from vramcast.features.advise.first_changes import expected_changes
from vramcast.features.advise.language_models import rough_parameters, single_language_model
from vramcast.features.advise.result import Suggestion
from vramcast.gpus import find_gpu
from vramcast.jobs.load import load_job

pytest.importorskip("peft")
pytest.importorskip("bitsandbytes")
pytest.importorskip("diffusers")
pytestmark = pytest.mark.slow

LLAMA_FACTORY = "https://github.com/hiyouga/LLaMA-Factory#hardware-requirement"
"""16-bit LoRA: 7B 16 GB, 13B 32 GB. 4-bit QLoRA: 7B 6 GB, 13B 12 GB, 30B 24 GB. Full in 16 bits: 7B 60 GB."""
AXOLOTL = "https://github.com/axolotl-ai-cloud/axolotl/tree/main/examples/llama-2"
"""7B fits any 24 GB card, with LoRA and with QLoRA; 13B with a micro-batch of 1."""
AXOLOTL_FULL = "https://github.com/axolotl-ai-cloud/axolotl/blob/main/examples/llama-3/fft-8b.yaml"
"""Full fine-tuning of 8B on one 48 GB card: bf16 weights, paged 8-bit AdamW, gradient checkpointing."""
TORCHTUNE_QLORA = "https://pytorch.org/torchtune/stable/tutorials/qlora_finetune.html"
"""Llama2-7B in less than 10 GB."""
ONE_GPU = "https://huggingface.co/docs/transformers/perf_train_gpu_one"
"""Mixed precision, gradient accumulation, gradient checkpointing, 8-bit Adam; the batch that is wanted is kept."""
ZERO = "https://arxiv.org/abs/1910.02054"
"""GPT-2 of 1.5 B parameters: 24 GB of weights, gradients and Adam's state before any activation."""
DREAMBOOTH = "https://huggingface.co/docs/diffusers/training/dreambooth"
"""On 16 GB: gradient checkpointing and 8-bit Adam."""


def llama(folder: Path, width: int, inner: int, layers: int, heads: int) -> str:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads,
        "max_position_embeddings": 4096, "vocab_size": 32000, "rms_norm_eps": 1e-05, "tie_word_embeddings": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def llama_7b(folder: Path) -> str:
    return llama(folder, 4096, 11008, 32, 32)


def llama_13b(folder: Path) -> str:
    return llama(folder, 5120, 13824, 40, 40)


def llama_33b(folder: Path) -> str:
    return llama(folder, 6656, 17920, 60, 52)


def gpt2_xl(folder: Path) -> str:
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def bert_large(folder: Path) -> str:
    config = {
        "architectures": ["BertForMaskedLM"], "model_type": "bert", "hidden_size": 1024, "intermediate_size": 4096,
        "num_hidden_layers": 24, "num_attention_heads": 16,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def stable_diffusion(folder: Path) -> str:
    config = {
        "_class_name": "UNet2DConditionModel", "block_out_channels": [320, 640, 1280, 1280],
        "cross_attention_dim": 768, "attention_head_dim": 8, "sample_size": 64, "in_channels": 4, "out_channels": 4,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def changed(one: Suggestion) -> set[str]:
    """The answer in the words of people."""
    said = one.overrides
    words = set()
    if any(value == "lora" for value in said.values()):
        words.add("qlora" if "nf4" in said.values() else "lora")
    elif any(key.endswith(".quantization") for key in said):
        words.add("4-bit base")
    if "4-bit base" not in words and any(key.endswith(".dtype") for key in said):
        words.add("half base")
    if "8bit" in str(said.get("optimizer", "")):
        words.add("8-bit Adam")
    if said.get("checkpointing") == "all":
        words.add("checkpointing")
    if said.get("precision") in ("bf16", "fp16"):
        words.add("mixed precision")
    if said.get("precision") in ("pure-bf16", "pure-fp16"):
        words.add("half weights")
    if said.get("precision") == "fp16":
        words.add("fp16")
    if said.get("loss"):
        words.add("loss in pieces")
    if "accumulation" in said:
        words.add("accumulation")
    return words


Case = tuple[Callable[[Path], str], dict[str, Any], str, set[str], set[str], str]
SHORT = {"sizes.batch": 1, "sizes.sequence": 1024}
FP32 = {"precision": "fp32"}
CASES: dict[str, Case] = {
    # the model, its sizes, the card, what the first answer has, what it does not have, the source
    "7B on 24 GB": (llama_7b, SHORT, "rtx-4090", {"lora", "half base"}, {"8-bit Adam", "half weights"}, AXOLOTL),
    "7B on 12 GB": (llama_7b, SHORT, "rtx-3060-12gb", {"qlora"}, {"8-bit Adam"}, TORCHTUNE_QLORA),
    "7B on 16 GB": (llama_7b, SHORT, "rtx-4060-ti-16gb", {"lora", "checkpointing"}, set(), LLAMA_FACTORY),
    "13B on 24 GB": (llama_13b, SHORT, "rtx-4090", {"qlora"}, {"8-bit Adam"}, LLAMA_FACTORY),
    "13B on 48 GB": (llama_13b, SHORT, "rtx-6000-ada", {"lora", "half base"}, set(), LLAMA_FACTORY),
    "33B on 48 GB": (llama_33b, SHORT, "rtx-6000-ada", {"qlora"}, set(), LLAMA_FACTORY),
    "7B in full on 48 GB": (
        llama_7b, SHORT, "rtx-6000-ada", {"half weights", "8-bit Adam"}, {"lora", "qlora"}, AXOLOTL_FULL,
    ),
    "GPT-2 XL on 24 GB": (gpt2_xl, SHORT | FP32, "rtx-4090", {"8-bit Adam"}, {"lora", "qlora"}, ZERO),
    "BERT large, batch 64 on 24 GB": (
        bert_large, {"sizes.batch": 64, "sizes.sequence": 512} | FP32, "rtx-4090",
        {"mixed precision", "accumulation"}, {"lora", "qlora", "half weights"}, ONE_GPU,
    ),
    "Stable Diffusion on 16 GB": (
        stable_diffusion, {"sizes.batch": 1} | FP32, "rtx-4060-ti-16gb", {"8-bit Adam"}, {"lora"}, DREAMBOOTH,
    ),
}  # fmt: skip


USUAL = ("BERT large, batch 64 on 24 GB",)
"""7B on 24 GB is looked at below."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in USUAL else pytest.mark.exhaustive) for name in CASES]
)
def test_the_first_answer_is_the_usual_one(name: str, tmp_path: Path) -> None:
    model, sizes, gpu, has, has_not, source = CASES[name]
    found = vramcast.check(load_job(model(tmp_path), sizes), gpu)
    assert not found.fits and found.verdict.changes, source
    first = changed(found.verdict.changes[0])
    assert has <= first and not has_not & first, (source, [one.text for one in found.verdict.changes])
    for one in found.verdict.changes:
        assert one.prediction.fits and one.samples_per_step == found.prediction.samples_per_step


def test_what_is_proposed_for_7b_is_what_check_says_of_it(tmp_path: Path) -> None:
    found = vramcast.check(load_job(llama_7b(tmp_path), SHORT), "rtx-4090")
    said = [changed(one) for one in found.verdict.changes]
    assert any("lora" in one for one in said) and any("qlora" in one for one in said)
    for one in found.verdict.changes:
        read = vramcast.check(load_job(str(tmp_path), {**SHORT, **one.overrides}), "rtx-4090")
        assert read.fits and read.verdict.needed_bytes == one.prediction.device_bytes
        assert read.prediction.step_seconds == pytest.approx(one.step_seconds)


def test_what_is_expected_before_a_trace_is_what_is_tried_first(tmp_path: Path) -> None:
    """So that its traces, which begin while the job itself is traced, are not in vain."""
    job = load_job(llama_7b(tmp_path)).job
    expected = [wish.text for wish in expected_changes(job, find_gpu("rtx-4090"), 2)]
    assert expected == [
        "checkpoint every block + LoRA of rank 16, bf16 base",
        "QLoRA of rank 16, 4-bit base",
        "checkpoint every block + QLoRA of rank 16, 4-bit base",
    ]
    part = single_language_model(job)
    assert part is not None and rough_parameters(part) == pytest.approx(6_738_415_616, rel=0.001)
    assert expected_changes(job, find_gpu("h200"), 2) == [], "54 GB of weights and gradients might fit"
