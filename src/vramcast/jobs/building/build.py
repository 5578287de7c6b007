"""From a component of a job to a module on the card, ready to be trained or used."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping

import torch
from torch import nn

from vramcast.base.errors import UsageError, VramcastError
from vramcast.base.sealing import sealed
from vramcast.card.dispatch.failures import job_failed
from vramcast.jobs.building import diffusers_folder, python_factory, timm, torchvision, transformers_folder
from vramcast.jobs.building.built import Built, in_dtype, keep_fp32
from vramcast.jobs.building.checkpointing import enable_checkpointing
from vramcast.jobs.building.chunked_loss import chunk_loss
from vramcast.jobs.building.libraries import library
from vramcast.jobs.building.lora import add_adapters
from vramcast.jobs.building.quantization import quantize, quantize_experts
from vramcast.jobs.building.trained_parameters import choose_trained
from vramcast.jobs.references import nearest
from vramcast.jobs.schema import SOURCES, Component, Job
from vramcast.jobs.stored_quantization import quantization_of
from vramcast.jobs.training.dtypes import DTYPES
from vramcast.jobs.training.plan import main_component

_SOURCE_FIELDS = (
    *SOURCES,
    "subfolder",
    "class_name",
    "task",
    "config",
    "arguments",
    "liger",
    "trust_remote_code",
    "prepare",
)


def build_component(name: str, job: Job, *, on_meta: bool = False, on_host: bool = False) -> Built:
    """Build it in its dtype, choose what is trained, then move it to the card, as training scripts do. `on_meta`: leave
    it on the meta device instead; `on_host`: in the computer's memory."""
    component = original(name, job.components)
    try:
        build = _on_the_card if component.built_on == "gpu" else _from_source
        built = build(name, component, job)
    except (VramcastError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever a library says about values that it cannot use
        source = getattr(component, component.source)
        raise job_failed(error, f"components.{name}", f"building {source}") from error
    module = built.module
    quantization = quantization_of(f"components.{name}", component, job.task)
    if quantization is not None:
        quantize(f"components.{name}", module, quantization, DTYPES[job.half_of(name)])
    place = "cuda" if component.device == "gpu" and job.offload_of(name) == "none" else "cpu"
    place = "meta" if on_meta else "cpu" if on_host else place
    if component.quantize_experts and not on_meta:
        quantize_experts(f"components.{name}", module, place)
    keep_fp32(module, component.keep_fp32)
    copies = [copy.deepcopy(module).requires_grad_(False) for _ in range(component.copies - 1)]
    chunks = max((term.chunks for term in job.loss), default=1)
    tokens = next((term.chunk_tokens for term in job.loss if term.chunk_tokens), None)
    if (chunks > 1 or tokens) and job.task == "training" and name == main_component(job):
        recompute = all(term.recompute for term in job.loss)
        chunk_loss("loss.chunks", module, chunks, tokens, recompute=recompute)
    if component.is_trained and job.task == "training" and not built.checkpoints_itself:
        enable_checkpointing(f"components.{name}", module, component.checkpointing or job.checkpointing)
    for method in component.prepare:
        _call(f"components.{name}.prepare", module, method)
    if component.mode == "lora":
        module = add_adapters(f"components.{name}", module, component.lora, built.family)
    choose_trained(f"components.{name}", module, component)
    training = component.is_trained if component.training_mode is None else component.training_mode
    module.train(training and job.task == "training")
    module = module.to(place)
    copies = [module_copy.to(place) for module_copy in copies]
    if component.channels_last:
        module, *copies = (_in_channels_last(part) for part in (module, *copies))
    return dataclasses.replace(built, module=module, base=built.module, copies=tuple(copies))


def _on_the_card(name: str, component: Component, job: Job) -> Built:
    """Build it in fp32 first; the cast makes new tensors there."""
    as_fp32 = component.model_copy(update={"dtype": "fp32"})
    with torch.device("cuda"):
        built = _from_source(name, as_fp32, job)
    dtype = DTYPES[component.dtype or job.precision.weights_dtype]
    return dataclasses.replace(built, module=in_dtype(built.module, dtype))


def _in_channels_last(module: nn.Module) -> nn.Module:
    volumes = any(parameter.dim() == 5 for parameter in module.parameters())
    layout = torch.channels_last_3d if volumes else torch.channels_last
    return module.to(memory_format=layout)  # type: ignore[call-overload, no-any-return]


def _call(key: str, module: nn.Module, method: str) -> None:
    callee = getattr(module, method, None)
    if not callable(callee):
        raise UsageError(f"{key}: {type(module).__name__} has no method {method!r}{_guess(method, module)}")
    try:
        callee()
    except TypeError as error:
        raise UsageError(f"{key}: {method} cannot be called without arguments: {error}") from None


def _guess(method: str, module: nn.Module) -> str:
    guess = nearest(method, [name for name in dir(module) if not name.startswith("_")])
    return guess if guess.startswith(";") else ""


def original(name: str, components: Mapping[str, Component]) -> Component:
    """The component with the source of the one that it is a copy of."""
    component = components[name]
    if component.same_as is not None:
        return original(component.same_as, components)
    if component.copy_of is None:
        return component
    source = original(component.copy_of, components)
    return component.model_copy(update={field: getattr(source, field) for field in _SOURCE_FIELDS})


def _from_source(name: str, component: Component, job: Job) -> Built:
    dtype_name = component.dtype or job.precision.weights_dtype
    dtype = DTYPES[dtype_name]
    if component.source != "factory":
        library(component.source, getattr(component, component.source))
    with sealed(on=component.source != "factory" and not component.trust_remote_code):
        return _made(f"components.{name}", component, job, dtype_name, dtype)


def _made(key: str, component: Component, job: Job, dtype_name: str, dtype: torch.dtype) -> Built:
    match component.source:
        case "transformers":
            return transformers_folder.build(key, component, dtype)
        case "diffusers":
            return diffusers_folder.build(key, component, dtype)
        case "timm":
            return timm.build(key, component, dtype)
        case "torchvision":
            return torchvision.build(key, component, dtype)
        case _:
            # A factory may have chosen a dtype itself: it is changed only when the job says one.
            keep = component.dtype is None and dtype_name == "fp32"
            of_job = job.checkpointing if "checkpointing" in job.model_fields_set else None
            checkpointing = component.checkpointing or of_job
            return python_factory.build(component, None if keep else dtype, checkpointing)


def trained_parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
