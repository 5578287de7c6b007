"""Batches with padding, as the rows that are not padding, and back."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

with contextlib.suppress(ImportError):  # the package needs einops, and others take these names from here
    from einops import rearrange, repeat  # type: ignore[import-not-found]  # noqa: F401


class _TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, indices: Tensor) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.rows = values.shape[0]
        flat = values.reshape(values.shape[0], -1)
        return torch.gather(flat, 0, indices[:, None].expand(-1, flat.shape[1])).reshape(-1, *values.shape[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (indices,) = ctx.saved_tensors
        flat = grad.reshape(grad.shape[0], -1)
        rows = torch.zeros((ctx.rows, flat.shape[1]), device=grad.device, dtype=grad.dtype)
        rows.scatter_(0, indices[:, None].expand(-1, flat.shape[1]), flat)
        return rows.reshape(ctx.rows, *grad.shape[1:]), None


class _PutRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, indices: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(indices)
        out = torch.zeros(rows, *values.shape[1:], device=values.device, dtype=values.dtype)
        out[indices] = values
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (indices,) = ctx.saved_tensors
        return grad[indices], None, None


class _TakeRowsAndAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, indices: Tensor) -> Any:
        ctx.save_for_backward(indices)
        return values[indices], values.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_of_all: Tensor) -> Any:
        (indices,) = ctx.saved_tensors
        places = indices.reshape(-1, *(1,) * (grad.ndim - 1)).expand_as(grad)
        grad_of_all.scatter_add_(0, places, grad)
        return grad_of_all, None


index_first_axis = _TakeRows.apply
index_put_first_axis = _PutRows.apply
index_first_axis_residual = _TakeRowsAndAll.apply


def unpad_input(hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None) -> Any:
    masks = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = masks.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    return *_taken(hidden_states, masks, lengths), used


def unpad_input_for_concatenated_sequences(hidden_states: Tensor, attention_mask_in_length: Tensor) -> Any:
    """Each row of the mask holds the lengths of the sequences in a row, then zeros."""
    total = attention_mask_in_length.sum(dim=-1)
    length = attention_mask_in_length.size(-1)
    places = torch.arange(length, device=total.device, dtype=total.dtype).expand(len(total), length)
    masks = places < total.unsqueeze(1)
    nonzero = torch.nonzero(attention_mask_in_length.flatten(), as_tuple=False).flatten()
    return _taken(hidden_states, masks, attention_mask_in_length.flatten()[nonzero])


def _taken(hidden_states: Tensor, masks: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    indices = torch.nonzero(masks.flatten(), as_tuple=False).flatten()
    longest = int(lengths.max().item())
    offsets = F.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, offsets, longest


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    rows = index_put_first_axis(hidden_states, indices, batch * seqlen)
    padded: Tensor = rows.unflatten(0, (batch, seqlen))
    return padded
