"""`liger: true` in a job."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import vramcast
from vramcast.base.errors import UsageError

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 512, "use_cache": False,
}  # fmt: skip


def _job(folder: Path, **model: Any) -> dict[str, Any]:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    component = {"transformers": str(folder), **model}
    return {"components": {"model": component}, "sizes": {"batch": 2, "sequence": 128}, "precision": "pure-bf16"}


@pytest.mark.skipif(importlib.util.find_spec("liger_kernel") is not None, reason="it is installed")
def test_it_must_be_installed(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(UsageError, match="needs liger_kernel, which is not installed: pip install liger_kernel"):
        vramcast.predict(_job(tmp_path, liger=True), gpu="h200")


@pytest.mark.skipif(importlib.util.find_spec("liger_kernel") is None, reason="liger-kernel is not installed")
def test_logits_never_lie_on_the_card_as_a_whole(tmp_path: Path) -> None:
    with_it, without = (vramcast.predict(_job(tmp_path, liger=on), gpu="h200") for on in (True, False))
    assert with_it.peak_allocated_bytes < without.peak_allocated_bytes


def test_flash_attention_in_a_job(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    arguments = {"attn_implementation": "flash_attention_2"}
    prediction = vramcast.predict(_job(tmp_path, arguments=arguments), gpu="h200")
    assert any(note.text.startswith("flash-attn is not installed here: a stand-in") for note in prediction.notes)
