"""The time of one operator on one card."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.gpus.spec import GpuSpec
from vramcast.timing.costs.calibration import Calibration
from vramcast.timing.costs.signature import Arguments, Tensor, parse_arguments

_LAUNCH_SECONDS = 1.5e-6
_VIEWS = frozenset(
    "view _unsafe_view reshape t transpose permute expand expand_as slice select unsqueeze squeeze split split_with_sizes "
    "unbind alias detach as_strided as_strided_ unfold diagonal view_as_real view_as_complex _conj empty empty_like new_empty "
    "empty_strided new_empty_strided _indices _values lift_fresh is_pinned chunk narrow movedim set_ resize_ "
    "_sparse_coo_tensor_with_dims_and_tensors _record_function_enter_new _record_function_exit _reshape_alias".split()
)


@dataclass(frozen=True, slots=True)
class OpCost:
    """What one call of an operator takes on the device."""

    kind: str
    flops: float
    bytes: float
    device_seconds: float
    limited_by: str
    """compute, memory or launch."""
    kernels: int
    """0 for views and for what only the host does."""


class CostModel:
    """The costs of operators on one card."""

    def __init__(self, spec: GpuSpec, calibration: Calibration | None = None) -> None:
        self.spec = spec
        self.calibrated = calibration is not None
        self.source = calibration.source if calibration else "specification"
        self.unknown_ops: dict[str, int] = {}
        self._known: dict[tuple[str, str, bool, bool], OpCost] = {}

    @staticmethod
    def for_gpu(spec: GpuSpec, calibration: Calibration | None = None) -> CostModel:
        return CostModel(spec, calibration)

    def cost(self, op: str, args: str, *, tf32: bool = False, cudnn_tf32: bool = True) -> OpCost:
        """The cost of `op` (as torch prints it, `aten.mm.default`) with arguments as `describe_arguments` writes them."""
        key = (op, args, tf32, cudnn_tf32)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._work_out(op, parse_arguments(args), tf32, cudnn_tf32)
        return known

    def _work_out(self, op: str, args: Arguments, tf32: bool, cudnn_tf32: bool) -> OpCost:
        name = op.split(".")[1] if "." in op else op
        if name in _VIEWS or op.startswith("profiler."):
            return OpCost("view", 0.0, 0.0, 0.0, "launch", 0)
        tensors = [tensor for tensor in args.tensors if tensor.device == "cuda"]
        moved = float(sum(tensor.nbytes for tensor in tensors) + max((t.nbytes for t in tensors), default=0))
        flops = _product_flops(name, tensors)
        rate = (self.spec.bf16_tflops or self.spec.fp16_tflops or 50.0) * 1e12
        if tensors and tensors[-1].dtype == "f32":
            wide = "conv" in name and cudnn_tf32 or tf32
            rate = ((self.spec.tf32_tflops if wide else self.spec.fp32_tflops) or 20.0) * 1e12
        compute = flops / (0.7 * rate)
        memory = moved / (0.8 * (self.spec.bandwidth_bytes_per_second or 5e11))
        seconds = _LAUNCH_SECONDS + max(compute, memory)
        limited = "launch" if max(compute, memory) < _LAUNCH_SECONDS else "compute" if compute > memory else "memory"
        return OpCost("gemm" if flops else "elementwise", flops, moved, seconds, limited, 1)


def _product_flops(name: str, tensors: list[Tensor]) -> float:
    if name in ("mm", "bmm"):
        return 2.0 * tensors[0].numel * tensors[1].shape[-1]
    if name in ("addmm", "baddbmm"):
        return 2.0 * tensors[1].numel * tensors[2].shape[-1]
    if name == "convolution" and len(tensors) >= 2:
        return 2.0 * tensors[0].numel * tensors[1].numel / max(tensors[1].shape[1], 1)
    if name == "convolution_backward" and len(tensors) >= 3:
        return 4.0 * tensors[0].numel / max(tensors[0].shape[1], 1) * tensors[2].numel
    if "attention" in name and len(tensors) >= 3:
        query, keys = (tensors[1], tensors[2]) if "backward" in name else (tensors[0], tensors[1])
        return (10.0 if "backward" in name else 4.0) * query.numel * keys.shape[-2]
    return 0.0
