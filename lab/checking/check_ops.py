"""torch's own samples of every operator, on a virtual card: is each byte that is alive booked?

    PYTHONPATH=src VRAMCAST_CHECK=1 python -m lab.checking.check_ops              # every operator, several dtypes: minutes
    PYTHONPATH=src VRAMCAST_CHECK=1 python -m lab.checking.check_ops --only cat --only sort

Each sample is run as a function, a method, in place, into `out=` of five kinds, through views, sparse, and backward. The
bytes booked must be those of the storages that are alive, and results must have the sizes they have on the CPU. An
operator that vramcast cannot follow has to say so.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import itertools
import sys
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import vramcast
from vramcast.card.device.context import VirtualGpu
from vramcast.card.dispatch.storages import ATTRIBUTE, GPU, sparse_parts
from vramcast.errors import CannotPredict

DTYPES = (torch.float32, torch.complex64, torch.int64, torch.bool, torch.bfloat16)
SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
LARGEST_SAMPLE = 1 << 22
OTHER_ON_CPU = {
    "native_batch_norm", "_native_batch_norm_legit",  # CUDA hands statistics back in evaluation too
    "arange", "linspace", "logspace", "normal",  # `out=` with as many elements keeps its shape on the CPU
    "to",  # samples that name the CPU
}  # fmt: skip
"""Whose results have other sizes on the CPU; their bytes are compared nevertheless."""


def operators(larger: int = 1) -> list[Any]:
    """torch's table of operators, with samples so many times larger along each dimension. It is imported with test
    helpers that want `expecttest`, of which nothing is used."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        stand_in: Any = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    import torch.testing._internal.opinfo

    of_samples = [module for name, module in sys.modules.items() if name.startswith("torch.testing._internal.opinfo")]
    for module, size in itertools.product(of_samples, ("XS", "S", "M", "L") if larger != 1 else ()):
        if hasattr(module, size):
            setattr(module, size, getattr(module, size) * larger)
    from torch.testing._internal.common_methods_invocations import op_db

    # Importing torch's samples forbids programs to set torch.backends' flags, as training scripts do.
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True

    return list(op_db)


ONLY_ON_CPU = {
    "addbmm in place": "it changes the size of the tensor it is called on",
    "torch._scaled_mm of views": "on a card the first matrix must be row-major",
}
"""Calls that the CPU takes and the card's own code, or torch's function for tensors without data, does not."""
HOST_ARGUMENTS = {"tensor_split"}
"""Operators whose arguments, beside the first, must lie in host memory."""


@dataclass
class Findings:
    checked: Counter[str] = field(default_factory=Counter)
    """Variants that were run and are booked, by kind."""
    operators: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    """What vramcast says it cannot follow."""
    failed: dict[str, str] = field(default_factory=dict)
    """Unbooked, or of another size than on the CPU."""
    raised: dict[str, str] = field(default_factory=dict)
    """Fails on the virtual card and not on the CPU."""


class Sweep:
    def __init__(self, card: VirtualGpu, samples: int) -> None:
        self._card = card
        self._ledger = card._ledger
        self._samples = samples
        self.findings = Findings()
        self._kept = 0
        keep = self._ledger.keep_workspace

        def keep_workspace(nbytes: int) -> tuple[int, int]:
            before = self._ledger.allocator.requested_bytes
            kept = keep(nbytes)
            self._kept += self._ledger.allocator.requested_bytes - before
            return kept

        self._ledger.keep_workspace = keep_workspace  # type: ignore[method-assign]

    def operator(self, op: Any, dtype: torch.dtype) -> None:
        for sample in self._take(lambda: op.sample_inputs("cpu", dtype, requires_grad=False)):
            for name, run in _variants(op, sample, dtype):
                self._check(op, f"{name}", dtype, sample, run)
        for layout in SPARSE:
            if op.supports_sparse_layout(layout):
                for sample in self._take(partial(op.sample_inputs_sparse, layout, "cpu", dtype)):
                    name = str(layout).removeprefix("torch.")
                    self._check(op, name, dtype, sample, partial(_call, op))

    def _take(self, make: Callable[[], Any]) -> list[Any]:
        """The first samples; torch makes some only where a library is installed."""
        samples = []
        with _outside(), contextlib.suppress(Exception):
            for sample in itertools.islice(make(), self._samples):
                if sum(t.numel() for t in _tensors(sample)) < LARGEST_SAMPLE:
                    samples.append(sample)
        return samples

    def _check(self, op: Any, variant: str, dtype: torch.dtype, sample: Any, run: Callable[[Any], Any]) -> None:
        key = f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''} {variant} {str(dtype)[6:]}"
        if f"{op.name} {variant}" in ONLY_ON_CPU:
            return
        if any(key in seen for seen in (self.findings.failed, self.findings.raised, self.findings.refused)):
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with _outside():
                    expected = run(_moved(sample, None))
            except Exception:
                return  # not a call that the CPU takes
            if expected is NotImplemented:
                return
            try:
                trouble = self._run(op, sample, run, expected)
            except CannotPredict as refusal:
                if "no rule for" in str(refusal):
                    self.findings.refused[key] = str(refusal).splitlines()[0]
                else:
                    self.findings.failed[key] = str(refusal)
                self._card._machine.unknown_kernels.clear()
                return
            except Exception as error:
                self.findings.raised[key] = (
                    f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                )
                return
        if trouble:
            self.findings.failed[key] = trouble
        else:
            self.findings.checked[variant] += 1
            self.findings.operators.add(op.name)

    def _run(self, op: Any, sample: Any, run: Callable[[Any], Any], expected: Any) -> str:
        allocator = self._ledger.allocator
        before, kept = allocator.requested_bytes, self._kept
        here = _moved(sample, "cuda")
        if op.name in HOST_ARGUMENTS:
            here.args = sample.args
        out = run(here)
        alive = _storage_bytes([here, out])
        booked = allocator.requested_bytes - before - (self._kept - kept)
        if booked != alive:
            gc.collect()
            booked = allocator.requested_bytes - before - (self._kept - kept)
        if booked != alive:
            return f"{alive} bytes are alive and {booked} booked"
        mine, theirs = _described(out), _described(expected)
        if mine != theirs and op.name not in OTHER_ON_CPU:
            return f"gives {mine}, on the CPU {theirs}"
        return ""


@contextlib.contextmanager
def _outside() -> Iterator[None]:
    """Here torch is as it is without a virtual card."""
    with torch.utils._python_dispatch._disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def _variants(op: Any, sample: Any, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    yield "function", lambda s: _call(op, s)
    if op.method_variant is not None and isinstance(sample.input, torch.Tensor):
        yield "method", lambda s: op.method_variant(s.input, *s.args, **s.kwargs)
    if op.inplace_variant is not None and isinstance(sample.input, torch.Tensor):
        yield "in place", lambda s: op.inplace_variant(s.input.clone(), *s.args, **s.kwargs)
    if op.supports_out:
        for name, make in _OUTS.items():
            yield f"out= {name}", partial(_into, op, make=make)
    yield "of views", lambda s: _call(op, _through_views(s))
    if op.supports_autograd and dtype in op.supported_backward_dtypes("cpu"):
        yield "backward", lambda s: _backward(op, s)


def _call(op: Any, sample: Any) -> Any:
    return op.op(sample.input, *sample.args, **sample.kwargs)


def _into(op: Any, sample: Any, make: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    plain = _call(op, sample)
    results = [plain] if isinstance(plain, torch.Tensor) else list(plain)
    if not all(isinstance(result, torch.Tensor) and result.layout is torch.strided for result in results):
        return NotImplemented
    outs = [make(result) for result in results]
    is_one = isinstance(plain, torch.Tensor)
    del plain, results
    given = op.op(sample.input, *sample.args, **sample.kwargs, out=outs[0] if is_one else tuple(outs))
    return [outs, given]


_OUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "right": lambda r: torch.empty(r.shape, dtype=r.dtype, device=r.device),
    "empty": lambda r: torch.empty(0, dtype=r.dtype, device=r.device),
    "too small": lambda r: torch.empty((1, *r.shape[1:], 1), dtype=r.dtype, device=r.device),
    "too large": lambda r: torch.empty((3, *r.shape), dtype=r.dtype, device=r.device),
    "strided": lambda r: torch.empty((*r.shape, 2), dtype=r.dtype, device=r.device)[..., 0],
}


def _through_views(sample: Any) -> Any:
    def view(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided or tensor.dim() == 0:
            return tensor
        return torch.stack([tensor, tensor], -1)[..., 1]

    return _mapped(view, sample)


def _backward(op: Any, sample: Any) -> Any:
    def ask(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            return tensor.detach().requires_grad_()
        return tensor

    sample = _mapped(ask, sample)
    out = sample.output_process_fn_grad(_call(op, sample))
    results = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not results or any(r.layout is not torch.strided for r in results):
        return NotImplemented
    torch.autograd.backward(results, [torch.ones_like(r) for r in results])
    given = [t.grad for t in _tensors(sample)]
    return [t.detach() for t in results], given, sample


def _mapped(change: Callable[[torch.Tensor], torch.Tensor], sample: Any) -> Any:
    return sample.transform(lambda value: change(value) if isinstance(value, torch.Tensor) else value)


def _moved(sample: Any, device: str | None) -> Any:
    """A copy of the sample with tensors of its own, here or on the card."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone() if device is None else tensor.detach().to(device)

    def place(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return move(value)
        if device is not None and isinstance(value, torch.device):
            return torch.device(device)
        return value

    moved = sample.transform(place)
    if device is not None and str(moved.kwargs.get("device")) == "cpu":
        moved.kwargs["device"] = device
    return moved


def _tensors(value: Any) -> list[torch.Tensor]:
    if hasattr(value, "input") and hasattr(value, "args"):
        value = [value.input, value.args, value.kwargs]
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _dense(tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    for tensor in tensors:
        if tensor.layout is torch.strided and not tensor.is_nested:
            yield tensor
        else:
            yield from sparse_parts(tensor)


def _storage_bytes(values: list[Any]) -> int:
    with torch._C.DisableTorchFunction():
        tensors = itertools.chain.from_iterable(_tensors(value) for value in _flattened(values))
        kept = (t for t in _dense(list(tensors)) if t.is_meta and not torch._is_zerotensor(t))  # those have no memory
        storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in kept}
        blocks = [(storage.nbytes(), getattr(storage, ATTRIBUTE, None)) for storage in storages.values()]
        return sum(nbytes for nbytes, block in blocks if block is None or block.device == GPU)


def _flattened(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _flattened(item)
    else:
        yield value


def _described(value: Any) -> list[str]:
    with torch._C.DisableTorchFunction():
        return [
            f"{str(t.dtype)[6:]}{list(t.shape)}{'' if t.layout is torch.strided else str(t.layout)}"
            for item in _flattened(value)
            for t in _tensors(item)
        ]


def sweep(
    card: str = "h100-sxm",
    only: list[str] | None = None,
    samples: int = 8,
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    every: int = 1,
) -> Findings:
    """`only`: operators whose names contain one of these; `every`: take every n-th."""
    chosen = [op for op in operators() if not only or any(word in op.name for word in only)][::every]
    with vramcast.virtual_gpu(card) as gpu:
        gpu.note_ops(False)
        run = Sweep(gpu, samples)
        gc.collect()
        gc.disable()  # garbage of one call must not be freed in the next
        gc.freeze()  # torch's table holds a million objects
        for op in chosen:
            gc.collect()
            supported = op.supported_dtypes("cpu")
            for dtype in [d for d in dtypes if d in supported] or sorted(supported, key=str)[:1]:
                run.operator(op, dtype)
        gc.enable()
        gc.unfreeze()
    return run.findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="operators whose name contains this")
    parser.add_argument("--samples", type=int, default=8, help="of each operator (default: 8)")
    parser.add_argument("--float-only", action="store_true")
    parser.add_argument("--gpu", default="h100-sxm")
    given = parser.parse_args()
    findings = sweep(given.gpu, given.only, given.samples, DTYPES[:1] if given.float_only else DTYPES)
    for title, rows in (("refused", findings.refused), ("raised", findings.raised), ("failed", findings.failed)):
        print(f"--- {title}: {len(rows)}")
        for name, text in rows.items():
            print(f"{name}: {text}")
    print(f"--- booked: {sum(findings.checked.values())} calls of {len(findings.operators)} operators")
    for variant, count in findings.checked.most_common():
        print(f"{count:6d} {variant}")
    return 1 if findings.failed or findings.raised else 0


if __name__ == "__main__":
    sys.exit(main())
