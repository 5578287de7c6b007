"""Losses whose kernels work on a full-sized temporary, or keep one."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.card.dispatch.storages import known_values
from vramcast.card.ops.reductions import reduction_scratch
from vramcast.card.ops.registry import Call, kernel

NONE = 0  # at::Reduction::None


@kernel("aten::mse_loss", "aten::smooth_l1_loss")
def pointwise_loss(call: Call) -> Any:
    """The result is made full-sized and then resized to a scalar: its storage stays as large as the input."""
    x, target = call.args[:2]
    shape = torch.broadcast_shapes(x.shape, target.shape)
    full = call.empty(shape, torch.promote_types(x.dtype, target.dtype))
    if call.argument("reduction") == NONE:
        return full
    return _resized_to_scalar(call, full, temporary=full.numel() * full.element_size())


def _resized_to_scalar(call: Call, full: torch.Tensor, temporary: int) -> torch.Tensor:
    scratch = reduction_scratch(full.size(), full.stride(), range(full.dim()), full.element_size(), 4, call.gpu)
    call.scratch(temporary, *scratch)
    return full.as_strided((), ())


@kernel("aten::huber_loss")
def huber_loss(call: Call) -> Any:
    x = call.args[0]
    full = call.empty(x.size(), x.dtype)
    if call.argument("reduction") == NONE:
        return full
    out = call.empty((), x.dtype)
    call.scratch(*reduction_scratch(full.size(), full.stride(), range(full.dim()), full.element_size(), 4, call.gpu))
    del full
    return out


@kernel("aten::soft_margin_loss")
def soft_margin_loss(call: Call) -> Any:
    """As `mse_loss`, but that the scalar is made beside it."""
    x = call.args[0]
    full = call.empty(x.size(), x.dtype)
    if call.argument("reduction") == NONE:
        return full
    return _resized_to_scalar(call, full, temporary=full.element_size())


@kernel("aten::soft_margin_loss_backward")
def soft_margin_loss_backward(call: Call) -> Any:
    x = call.args[1]
    held = [call.empty(x.size(), x.dtype) for _ in range(2)]  # -target, and times the input
    exponentials = call.empty(x.size(), x.dtype)
    del held
    out = call.run()
    del exponentials
    return out


@kernel("aten::binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(call: Call) -> Any:
    x = call.args[0]
    nbytes = x.numel() * x.element_size()
    if call.argument("reduction") == NONE:
        out = call.empty(x.size(), x.dtype)
        call.scratch(nbytes)
        return out
    held = [call.empty(x.size(), x.dtype) for _ in range(2)]  # log-sigmoid, then the loss of each element
    out = call.empty((), x.dtype)
    del held
    return out


@kernel("aten::binary_cross_entropy")
def binary_cross_entropy(call: Call) -> Any:
    x = call.args[0]
    full = call.empty(x.size(), x.dtype)
    if call.argument("reduction") == NONE:
        return full
    call.scratch(x.element_size())
    return full.as_strided((), ())


@kernel("aten::log_sigmoid_forward")
def log_sigmoid(call: Call) -> Any:
    """The buffer that the CPU's kernel fills stays empty on CUDA."""
    x = call.args[0]
    return call.empty(x.size(), x.dtype), call.empty((0,), x.dtype)


@kernel("aten::_use_cudnn_ctc_loss", "aten::_use_miopen_ctc_loss")
def uses_cudnn_ctc(call: Call) -> bool:
    return False  # needs int32 targets on the host; the native kernel takes what programs usually pass


@kernel("aten::_ctc_loss")
def ctc_loss(call: Call) -> Any:
    log_probs, targets = call.args[:2]
    batch, longest = log_probs.size(1), _longest_target(call, targets, log_probs.size(1))
    lengths = _lengths_on_the_device(call, batch)
    alpha = call.empty((batch, log_probs.size(0), 2 * longest + 1), log_probs.dtype)
    loss = call.empty((batch,), log_probs.dtype)
    del lengths
    return loss, alpha


@kernel("aten::_ctc_loss_backward")
def ctc_loss_backward(call: Call) -> Any:
    """Like at::native::ctc_loss_backward_gpu_template: long sequences take the reduction over blanks in whole-tensor
    steps; with `zero_infinity` the gradient is made a second time."""
    log_probs, alpha = call.args[1], call.argument("log_alpha")
    steps, batch, labels = log_probs.size()
    lengths = _lengths_on_the_device(call, batch)
    beta = call.empty(alpha.size(), alpha.dtype)
    grad = call.empty(log_probs.size(), log_probs.dtype)
    if 2 * steps + 24 * batch // 10 + 2 * labels // 10 > CTC_LONG:
        _blanks(call, batch, steps, alpha.size(2) // 2 + 1, log_probs.dtype)
    if call.argument("zero_infinity", False):
        infinite = [call.empty((), log_probs.dtype), call.empty((batch,), torch.bool)]
        grad = call.empty(log_probs.size(), log_probs.dtype)
        del infinite
    del beta, lengths
    return grad


CTC_LONG = 450


def _lengths_on_the_device(call: Call, batch: int) -> list[torch.Tensor]:
    return [call.empty((batch,), torch.int64) for _ in range(3)]


def _blanks(call: Call, batch: int, steps: int, blanks: int, dtype: torch.dtype) -> None:
    """logsumexp over the blanks of alpha + beta."""
    total = call.empty((batch, steps, blanks), dtype)
    result, largest = (call.empty((batch, steps, 1), dtype) for _ in range(2))
    call.scratch(batch * steps)
    del result
    shifted, result = call.empty((batch, steps, blanks), dtype), call.empty((batch, steps, 1), dtype)
    del shifted, largest, result, total


def _longest_target(call: Call, targets: torch.Tensor, batch: int) -> int:
    lengths = call.argument("target_lengths")
    if isinstance(lengths, torch.Tensor):
        content = known_values(lengths) if lengths.is_meta else lengths
        if content is None:
            return targets.size(1) if targets.dim() == 2 else -(-targets.numel() // batch)
        return int(content.max())
    return int(max(lengths))
