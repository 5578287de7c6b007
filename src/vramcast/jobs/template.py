"""A first vramcast.yaml for a model folder, with what can be changed as comments."""

from __future__ import annotations

import os
from pathlib import Path

from vramcast.errors import UsageError
from vramcast.jobs.readers import Request, model_folder
from vramcast.jobs.schema import Component

_HEAD = """\
# What is trained, for `vramcast predict {file}`. Every field: docs/jobs.md.
# For completion in an editor: vramcast init --schema vramcast.schema.json, and then this line without the first #:
# # yaml-language-server: $schema=vramcast.schema.json
name: {name}

components:
"""
_TAIL = """
# Of one GPU's batch. What is left out comes from the model's config.
sizes:
  batch: 1
  # sequence: 2048
  # frames: 17
  # height: 512
  # width: 512

precision: bf16          # fp32, tf32, bf16 or fp16 (autocast), pure-bf16, pure-fp16
optimizer: adamw         # any of torch.optim, adamw8bit, or {name: adamw, arguments: {fused: true}}
# checkpointing: all     # or {scope: modules, modules: ["blocks.*"]}
# gradient_clipping: 1.0
# accumulation: 4        # passes for one optimizer step
# ema: true
# gpus: 4                # data parallel; the prediction is for one of them
# evaluation: {when: between, batch: 8}
# dataset: {size: 100000, epochs: 3}

# The inputs that are usual for this kind of model are taken. To say your own:
# inputs:
#   images: {shape: [batch, 3, height, width]}
#   labels: {shape: [batch], dtype: int64, below: 1000}
# loss: cross-entropy

# target: rtx-4090       # the card, or a size such as 24GiB
"""


def job_template(model: Path, output: Path) -> str:
    if not model.is_dir():
        raise UsageError(f"no such folder: {model}")
    job = model_folder.read(model, Request()).job
    text = _HEAD.format(file=output.name, name=job.name)
    place = os.path.relpath(model, output.resolve().parent)
    place = place if place.startswith(".") else f"./{place}"
    for name, component in job.components.items():
        text += f"  {name}:\n" + "".join(f"    {line}\n" for line in _lines(component, place))
    return text + _TAIL


def _lines(component: Component, place: str) -> list[str]:
    lines = [f"{component.source}: {place}"]
    if component.subfolder is not None:
        lines.append(f"subfolder: {component.subfolder}")
    if component.is_trained:
        return [*lines, "# mode: lora           # trained (default), frozen or lora", "# lora: {rank: 16}"]
    lines.append(f"mode: {component.mode}")
    lines.append(f"dtype: {component.dtype}")
    if not component.call:
        lines.append("call: false            # it lies on the card; its results come ready-made")
    return lines
