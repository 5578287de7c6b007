"""Collectives of Python objects: every rank says what this one says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from vramcast.card.device.patches import Patches


def install(put: Patches) -> None:
    distributed: Any = torch.distributed
    for function in (broadcast_object_list, all_gather_object, gather_object, scatter_object_list):
        original = getattr(distributed, function.__name__)
        put.everywhere(function.__name__, original, function)


def broadcast_object_list(object_list: list[Any], *args: Any, **kwargs: Any) -> None:
    """The list is taken to be the source's already."""


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    object_list[:] = [obj] * len(object_list)


def gather_object(obj: Any, object_gather_list: list[Any] | None = None, *args: Any, **kwargs: Any) -> None:
    if object_gather_list:
        object_gather_list[:] = [obj] * len(object_gather_list)


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    **kwargs: Any,
) -> None:
    if scatter_object_input_list:
        scatter_object_output_list[0] = scatter_object_input_list[torch.distributed.get_rank(group)]
