"""Write a checkpoint of Llama 7B whose header is complete and whose weights are a hole in the file."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def write(folder: Path) -> None:
    config = LlamaConfig(use_cache=False, architectures=["LlamaForCausalLM"])
    config.save_pretrained(folder)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    header: dict[str, object] = {}
    offset = 0
    for name, tensor in model.state_dict().items():
        size = tensor.numel() * 2
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
