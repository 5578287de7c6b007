"""A first vramcast.yaml for a model folder or a training script, with what can be changed as comments."""

from __future__ import annotations

import json
import os
from pathlib import Path

from vramcast.base.errors import UsageError
from vramcast.jobs.readers import Request, model_folder
from vramcast.jobs.schema import Component
from vramcast.jobs.script_outline import Finding, Outline, outline

_HEAD = """\
# What is trained, for `vramcast predict {file}`. Every field: docs/jobs.md.
# For completion in an editor: vramcast init --schema vramcast.schema.json, and then this line without the first #:
# # yaml-language-server: $schema=vramcast.schema.json
name: {name}
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


_SCRIPT = """
# The script is run on the virtual card as it is, as `vramcast run` does, and stopped after a few optimizer steps.
script:
  path: {place}
  arguments: [{needed}]
"""
_FIELDS = """
# Or say in fields what it trains, instead of `script`: then --batch, --precision and the others change it, no data is
# needed, and nothing of the script is run. This is what its text says; check it, and take the # away.
#
"""
_KEYS = ("precision", "optimizer", "checkpointing", "gradient_clipping", "accumulation", "ema")


def job_template(source: Path, output: Path) -> str:
    """`source` is a model folder or a script, which is read and not run."""
    if os.path.isdir(source):
        return _of_folder(source, output)
    if source.suffix == ".py":
        return _of_script(source, output)
    if os.path.exists(source):
        raise UsageError(f"{source} is neither a model folder nor a Python script (.py)")
    raise UsageError(f"no such folder or script: {source}")


def _of_script(script: Path, output: Path) -> str:
    summary = outline(script)
    needed = [word for option in summary.options if option.needed for word in option.words_to_fill_in]
    text = _HEAD.format(file=output.name, name=json.dumps(script.stem))
    text += _SCRIPT.format(place=json.dumps(_place(script, output)), needed=json.dumps(needed)[1:-1])
    words = [word for option in summary.options if not option.needed for word in option.words]
    if words:
        text += f"  # Its options and their defaults: {_one_line(' '.join(words))}\n"
    text += "\n# target: rtx-4090       # the card, or a size such as 24GiB\n"
    return text + _FIELDS + "".join(f"# {line}\n" for line in _suggestions(summary))


def _suggestions(script: Outline) -> list[str]:
    lines = ["components:", "  model: {transformers: ./folder-with-its-config-json}  # or timm, torchvision, factory"]
    lines += [f"  # line {line}: {text}" for line, text in script.models]
    sizes = [_said(finding, "  ") for finding in _each(script, "sizes.")]
    lines += ["sizes:", *(sizes or ["  batch: 1  # not found in the script"])]
    for key in _KEYS:
        finding = script.first(key)
        if finding is not None:
            lines.append(_said(finding, ""))
    epochs = script.first("dataset.epochs")
    if epochs is not None:
        lines += ["dataset:", "  size: 1000  # samples; not found in the script", _said(epochs, "  ")]
    missing = [key for key in ("precision", "optimizer") if script.first(key) is None]
    if missing:
        lines.append(f"# not found in the script: {', '.join(missing)}")
    return lines


def _each(script: Outline, prefix: str) -> list[Finding]:
    """The first finding for each key with this prefix."""
    first: dict[str, Finding] = {}
    for finding in script.findings:
        if finding.key.startswith(prefix):
            first.setdefault(finding.key, finding)
    return list(first.values())


def _said(finding: Finding, indent: str) -> str:
    return (
        f"{indent}{finding.key.rpartition('.')[2]}: {finding.value}  # line {finding.line}: {_one_line(finding.what)}"
    )


def _one_line(text: str) -> str:
    """Text of the script must stay inside the comment."""
    return " ".join(text.split())


def _place(source: Path, output: Path) -> str:
    place = os.path.relpath(source, output.resolve().parent)
    return place if place.startswith(".") else f"./{place}"


def _of_folder(model: Path, output: Path) -> str:
    job = model_folder.read(model, Request()).job
    text = _HEAD.format(file=output.name, name=job.name) + "\ncomponents:\n"
    place = _place(model, output)
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
