"""Which fields of a job ask for code to be run. Every other field is data.

A model of a library may be called by the methods that are listed here, and prepared by those that are: they take
tensors, or nothing, and give tensors, or nothing. Every other method of a library is code like any other, for it may
load, save, or run what its arguments say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from vramcast.base.access import CodePlace
from vramcast.jobs.schema import Component, Job

METHODS = frozenset((
    "forward", "encode", "decode", "tiled_encode", "tiled_decode", "forward_features", "forward_head",
    "forward_intermediates", "extract_features", "get_text_features", "get_image_features", "get_audio_features",
    "get_video_features", "get_qformer_features", "get_multimodal_features", "training_step",
))  # fmt: skip
"""What `method` may name: of transformers, diffusers and timm; training_step is what Lightning calls."""

PREPARATIONS = frozenset((
    "freeze_feature_encoder", "freeze_feature_extractor", "freeze_base_model", "enable_input_require_grads",
    "disable_input_require_grads", "gradient_checkpointing_enable", "gradient_checkpointing_disable",
    "enable_gradient_checkpointing", "disable_gradient_checkpointing", "set_grad_checkpointing", "enable_slicing",
    "disable_slicing", "enable_tiling", "disable_tiling", "fuse_qkv_projections", "unfuse_qkv_projections",
    "set_default_attn_processor",
    "enable_forward_chunking", "disable_forward_chunking", "train", "eval", "half", "bfloat16", "float", "double",
    "requires_grad_", "zero_grad",
))  # fmt: skip
"""What `prepare` may name."""

_WORD = re.compile(r"[A-Za-z0-9_ .,+-]*")


def code_in(job: Job, where: str = "") -> tuple[CodePlace, ...]:
    """The places of the job that ask for code; `where` is the file that they stand in."""
    return tuple(CodePlace(key, what, where) for key, what in _places(job))


def _places(job: Job) -> Iterator[tuple[str, str]]:
    if job.script is not None:
        yield "script.path", f"script: {job.script.path}"
    if job.step is not None:
        yield "step.factory", f"factory: {job.step.factory}"
    for name, component in job.components.items():
        yield from _of_component(f"components.{name}", component)
    for section, factories in (
        ("loss", [loss.factory for loss in job.loss]),
        ("optimizer", [optimizer.factory for optimizer in job.optimizer]),
    ):
        for i, factory in enumerate(factories):
            if factory is not None:
                yield f"{section}.{i}.factory" if len(factories) > 1 else f"{section}.factory", f"factory: {factory}"


def _of_component(key: str, component: Component) -> Iterator[tuple[str, str]]:
    if component.factory is not None:
        yield f"{key}.factory", f"factory: {component.factory}"
    if component.trust_remote_code:
        folder = component.transformers or component.diffusers or component.source
        yield f"{key}.trust_remote_code", f"trust_remote_code: true (of {folder})"
    if component.method is not None and component.method not in METHODS:
        yield f"{key}.method", f"method: {component.method}"
    for name in component.prepare:
        if name not in PREPARATIONS:
            yield f"{key}.prepare", f"prepare: {name}"


def is_plain(value: Any) -> bool:
    """Numbers, true, false, null, words, and lists and mappings of these: nothing that names a file or an address."""
    match value:
        case None | bool() | int() | float():
            return True
        case str():
            return _WORD.fullmatch(value) is not None
        case list() | tuple():
            return all(is_plain(item) for item in value)
        case dict():
            return all(
                isinstance(name, (str, int)) and is_plain(name) and is_plain(item) for name, item in value.items()
            )
    return False
