"""Functions that PyTorch takes apart differently on CUDA than on a meta tensor.

Registered in the dispatcher for meta tensors while the virtual GPU is active: each makes the choice CUDA would make
for the target card and calls the op that CUDA would call, so that autograd saves what it would save.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from vramcast.base.torch_versions import FUSED_RMS_NORM
from vramcast.card.choices import attention as attention_choice
from vramcast.card.choices import batch_norm as batch_norm_choice
from vramcast.card.choices import cumulative_product, encoder_layer, fused_norm, recurrent
from vramcast.card.device.installed_torch import INSTALLED
from vramcast.card.dispatch.origins import unwrapped
from vramcast.card.dispatch.storages import is_virtual_gpu

_KEYS = ("AutogradMeta", "Meta")
_TRANSFORMED_KEYS = ("AutogradOther", "FuncTorchBatched")
"""Where grad and vmap of torch.func take functions apart: their tensors belong to no device of their own."""
_TRANSFORMED = ("scaled_dot_product_attention", "batch_norm", "softmax.int", "log_softmax.int", "gru_cell", "lstm_cell")


class Composites:
    """Installs the functions; one instance per virtual GPU."""

    def __init__(self, machine: Any) -> None:
        self._machine = machine
        self._libraries: list[Any] = []
        self._fastpath = True
        self._forwards: dict[Any, Any] = {}

    def install(self) -> None:
        functions: dict[str, Callable[..., Any]] = {
            "dropout": dropout,
            "scaled_dot_product_attention": attention_choice.attention_for(self._machine),
            "batch_norm": batch_norm_choice.batch_norm_for(self._machine.gpu),
            "linear": linear,
            "ctc_loss.Tensor": ctc_loss,
            "one_hot": one_hot,
            "softmax.int": softmax,
            "log_softmax.int": log_softmax,
            "mish_backward": fused_norm.mish_backward_for(self._machine.op_log),
            "gru_cell": gru_cell,
            "lstm_cell": lstm_cell,
            **recurrent.functions(self._machine),
        }
        if INSTALLED >= FUSED_RMS_NORM:
            functions["rms_norm"] = fused_norm.rms_norm_for(self._machine.op_log)
        for key in _KEYS:
            self._replace(functions, key)
        self._replace({"cumprod": cumulative_product.cumprod_for(self._machine)}, "AutogradMeta")
        transformed = {name: _on_card(name, functions[name]) for name in _TRANSFORMED}
        for key in _TRANSFORMED_KEYS:
            self._replace(transformed, key)
        self._replace({"dropout": transformed_dropout}, "FuncTorchDynamicLayerFrontMode")
        # PyTorch's fused kernels for evaluation have no rule: encoder_layer.py does what they do, in ordinary ops.
        self._fastpath = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        for kind, forward_of in encoder_layer.FORWARDS.items():
            self._forwards[kind] = kind.forward
            kind.forward = forward_of(kind.forward, lambda: self._fastpath)

    def _replace(self, functions: dict[str, Callable[..., Any]], key: str) -> None:
        library: Any = torch._C._dispatch_library("IMPL", "aten", key, "vramcast/composites.py", 0)
        for name, function in functions.items():
            library.impl(name, key, function, False)
        self._libraries.append(library)

    def remove(self) -> None:
        if self._libraries:
            torch.backends.mha.set_fastpath_enabled(self._fastpath)
            for kind, forward in self._forwards.items():
                kind.forward = forward
        for library in self._libraries:
            library.reset()
        self._libraries = []


def _on_card(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` for the card's tensors; those of the host are taken apart as PyTorch does it."""
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def chosen(first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if first.is_meta:
            return function(first, *args, **kwargs)
        return _taken_apart(op, first, *args, **kwargs)

    return chosen


def _taken_apart(op: Any, *args: Any, **kwargs: Any) -> Any:
    """As PyTorch does it."""
    return op._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def _is_of_host(tensor: torch.Tensor) -> bool:
    tensor = unwrapped(tensor)
    return not is_virtual_gpu(tensor) if tensor.is_meta else tensor.device.type == "cpu"


def transformed_dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Dropout under torch.func, which has its own copy of at::dropout (PyTorchOperatorHacks.cpp)."""
    if input.is_meta or not train or p in (0, 1):
        return dropout(input, p, train)
    return input * torch.empty_like(input).bernoulli_(1 - p).div_(1 - p)


def dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """CUDA fuses dropout when it trains with 0 < p < 1 (is_fused_kernel_acceptable in Dropout.cpp)."""
    if not train or p == 0 or input.numel() == 0:
        return input
    if p == 1:
        return input * torch.zeros((), dtype=input.dtype, device=input.device)
    return torch.ops.aten.native_dropout.default(input, p, train)[0]  # type: ignore[no-any-return]


def one_hot(self: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Zeros and a scatter, as on CUDA; the class count is read from the data where it is not given."""
    if num_classes == -1:
        num_classes = int(self.max().item()) + 1
    out = torch.zeros((*self.shape, num_classes), dtype=torch.int64, device=self.device)
    return out.scatter_(-1, self.unsqueeze(-1), 1)


def ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """at::ctc_loss reads the lengths on the host, whichever device they are on; under a dispatch mode it would leave
    them where they are, and then divide losses of the card by lengths of the host."""
    lengths = [_on_host(tensor) for tensor in (input_lengths, target_lengths)]
    return torch.ops.aten.ctc_loss.IntList(  # type: ignore[no-any-return]
        log_probs, targets, *lengths, blank, reduction, zero_infinity
    )


def _on_host(lengths: torch.Tensor) -> list[int]:
    return [int(length) for length in lengths.cpu().flatten().tolist()]


def gru_cell(
    input: torch.Tensor,
    hx: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> torch.Tensor:
    aten = torch.ops.aten
    if _is_of_host(w_ih):
        return _taken_apart(aten.gru_cell.default, input, hx, w_ih, w_hh, b_ih, b_hh)  # type: ignore[no-any-return]
    return aten._thnn_fused_gru_cell.default(  # type: ignore[no-any-return]
        input.matmul(w_ih.t()), hx.matmul(w_hh.t()), hx, b_ih, b_hh
    )[0]


def lstm_cell(
    input: torch.Tensor,
    hx: list[torch.Tensor],
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    if _is_of_host(w_ih):
        op = torch.ops.aten.lstm_cell.default
        return _taken_apart(op, input, hx, w_ih, w_hh, b_ih, b_hh)  # type: ignore[no-any-return]
    out = torch.ops.aten._thnn_fused_lstm_cell.default(
        input.matmul(w_ih.t()), hx[0].matmul(w_hh.t()), hx[1], b_ih, b_hh
    )
    return out[0], out[1]


def softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """CUDA widens fp16 to fp32 inside the kernel; everything else is converted first."""
    if input.dtype == torch.float16 and dtype == torch.float32:
        return torch.ops.aten._softmax.default(input, dim, True)  # type: ignore[no-any-return]
    return torch.ops.aten._softmax.default(input if dtype is None else input.to(dtype), dim, False)  # type: ignore[no-any-return]


def log_softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    if input.dtype == torch.float16 and dtype == torch.float32:
        return torch.ops.aten._log_softmax.default(input, dim, True)  # type: ignore[no-any-return]
    return torch.ops.aten._log_softmax.default(input if dtype is None else input.to(dtype), dim, False)  # type: ignore[no-any-return]


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """at::linear; under a dispatch mode it adds the bias out of place where it cannot be fused."""
    if weight.dim() != 2 or bias is None:
        out = _times_weight(input, weight) if weight.dim() == 2 else input.matmul(weight)
        return out if bias is None else out + bias
    if input.dim() == 2:
        return torch.addmm(bias, input, weight.t())
    if input.dim() > 2 and input.is_contiguous():
        flat = input.reshape(-1, input.size(-1))
        return torch.addmm(bias, flat, weight.t()).view(*input.shape[:-1], weight.size(0))
    out = _times_weight(input, weight)
    return out + bias if _program_has_a_mode() else out.add_(bias)


def _program_has_a_mode() -> bool:
    """A dispatch mode beside the card's own and those that trace for a compiler: selective checkpointing, a counter of
    operations (isTensorSubclassLike in TensorSubclassLikeUtils.h)."""
    return any(
        getattr(mode, "_mode_key", None) is None and not type(mode).__module__.startswith("vramcast.")
        for mode in _get_current_dispatch_mode_stack()
    )


def _times_weight(input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """at::matmul folds a batch into one matrix where the weight is trained, also in inference mode; there a mode sees
    the transposed weight as one that is not (should_fold in LinearAlgebra.cpp)."""
    if torch.is_inference_mode_enabled() and weight.requires_grad and input.dim() > 2:
        flat = input.reshape(-1, input.size(-1))
        return flat.mm(weight.t()).view(*input.shape[:-1], weight.size(0))
    return input.matmul(weight.t())
