"""From a component of a job to a module on the card, ready to be trained or used."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping

import torch
from torch import nn

from vramcast.errors import UsageError, VramcastError
from vramcast.jobs.components import diffusers_folder, python_factory, timm, torchvision, transformers_folder
from vramcast.jobs.components.built import Built
from vramcast.jobs.components.checkpointing import enable_checkpointing
from vramcast.jobs.components.lora import add_adapters
from vramcast.jobs.components.quantization import quantize
from vramcast.jobs.components.trained_parameters import choose_trained
from vramcast.jobs.schema import SOURCES, Component, Job
from vramcast.jobs.training.dtypes import DTYPES

_SOURCE_FIELDS = (*SOURCES, "subfolder", "class_name", "task", "config", "arguments", "trust_remote_code")


def build_component(name: str, job: Job) -> Built:
    """Build it on the CPU in its dtype, choose what is trained, then move it to the card, as training scripts do."""
    component = original(name, job.components)
    try:
        built = _from_source(component, job)
    except (VramcastError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever a library says about values that it cannot use
        said = str(error).strip().splitlines()
        what = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
        source = getattr(component, component.source)
        raise UsageError(f"components.{name}: {source} cannot be built: {what}") from error
    module = built.module
    if component.quantization != "none":
        quantize(f"components.{name}", module, component.quantization)
    if component.channels_last:
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    copies = [copy.deepcopy(module).requires_grad_(False) for _ in range(component.copies - 1)]
    if component.is_trained and job.task == "training":
        enable_checkpointing(f"components.{name}", module, component.checkpointing or job.checkpointing)
    if component.mode == "lora":
        module = add_adapters(f"components.{name}", module, component.lora, built.family)
    choose_trained(f"components.{name}", module, component)
    training = component.is_trained if component.training_mode is None else component.training_mode
    module.train(training and job.task == "training")
    if component.device == "gpu":
        module = module.to("cuda")
        copies = [one.to("cuda") for one in copies]
    return dataclasses.replace(built, module=module, base=built.module, copies=tuple(copies))


def original(name: str, components: Mapping[str, Component]) -> Component:
    """The component with the source of the one that it is a copy of."""
    component = components[name]
    if component.copy_of is None:
        return component
    source = original(component.copy_of, components)
    return component.model_copy(update={field: getattr(source, field) for field in _SOURCE_FIELDS})


def _from_source(component: Component, job: Job) -> Built:
    said = component.dtype or job.precision.weights_dtype
    dtype = DTYPES[said]
    match component.source:
        case "transformers":
            return transformers_folder.build(component, dtype)
        case "diffusers":
            return diffusers_folder.build(component, dtype)
        case "timm":
            return timm.build(component, dtype)
        case "torchvision":
            return torchvision.build(component, dtype)
        case _:
            # A factory may have chosen a dtype itself: it is changed only when the job says one.
            keep = component.dtype is None and said == "fp32"
            checkpointing = component.checkpointing or job.checkpointing
            return python_factory.build(component, None if keep else dtype, checkpointing)


def trained_parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
