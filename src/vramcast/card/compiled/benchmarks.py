"""Choices that Inductor makes by timing both ways on the card. What is timed is allocated here too; which way is faster
is assumed, and said in a note."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from vramcast.card.choices import tf32

if TYPE_CHECKING:
    from vramcast.card.compiled.visibility import Visibility
    from vramcast.card.device.machine import Machine
    from vramcast.card.device.patches import Patches


def install(put: Patches, machine: Machine, visibility: Visibility) -> None:
    from torch._inductor.runtime import benchmarking

    def benchmark_gpu(self: Any, _callable: Any, *args: Any, **kwargs: Any) -> float:
        """Run it as often as changes the memory: once, and once beside the buffer that flushes the L2 cache."""
        with visibility.show():
            _callable()
            buffer = torch.empty((machine.gpu.l2_bytes or 0) // 4, dtype=torch.int, device="cuda")
            _callable()
            del buffer
        return 1.0

    for kind in (benchmarking.TritonBenchmarker, benchmarking.InductorBenchmarker):
        put.set(kind, "benchmark_gpu", benchmark_gpu)
    _padded_products(put, machine, visibility)
    _algorithms(put, machine, visibility)


_NEED_A_CARD: dict[str, tuple[Any, str]] = {
    "cpp_wrapper": (False, "buffers are those of a wrapper in Python, and the host takes as long"),
    "triton.autotune_at_compile_time": (False, "kernels are timed when they are first launched"),
    "benchmark_fusion": (False, "kernels are fused as without it; a real run times both ways"),
    "benchmark_combo_kernel": (False, "kernels are combined as without it; a real run times both ways"),
    "triton.multi_kernel": (0, "of each pair of kernels the one of the default mode runs; a real run times both"),
}
"""Settings of Inductor for which it launches what it has generated, or compiles for CUDA: what stands for each, and
what is then said."""


@contextmanager
def without_settings_that_need_a_card(machine: Machine) -> Iterator[None]:
    from torch._inductor import config

    set_by_program = [name for name in _NEED_A_CARD if operator.attrgetter(name)(config)]
    # A wrapper in C++ brings the timing with it.
    for name in set_by_program[: 1 if "cpp_wrapper" in set_by_program else None]:
        machine.note("torch.compile", f"{name}: {_NEED_A_CARD[name][1]}")
    with config.patch({name: _NEED_A_CARD[name][0] for name in set_by_program}):
        yield


def _padded_products(put: Patches, machine: Machine, visibility: Visibility) -> None:
    """Matrix products whose sizes are not multiples of 8 (half precision) or 4 (float32) may be padded."""
    from torch._inductor.fx_passes import pad_mm
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    should_pad: Any = pad_mm._should_pad
    asked: list[tuple[Any, Any]] = []

    def _should_pad(match: Any, mat1: Any, mat2: Any, op: Any, input: Any = None) -> bool:
        asked.append((mat1, mat2))
        try:
            with unset_fake_temporarily(), visibility.show():  # else what is timed takes no memory
                return bool(should_pad(match, mat1, mat2, op, input))
        finally:
            asked.pop()

    def is_padded_faster(key: str, ori_time: float, pad_time: float) -> bool:
        """Measured on an H200: padding pays where the inner or the last size is odd, not for the first one alone, and
        not where no tensor core is used (float32 without TF32)."""
        mat1, mat2 = asked[-1]
        unit = pad_mm.get_alignment_size(mat1)
        on_tensor_cores = mat1.dtype != torch.float32 or tf32.in_matmul()
        faster = on_tensor_cores and bool(mat1.shape[-1] % unit or mat2.shape[-1] % unit)
        sizes = f"{list(mat1.shape)} x {list(mat2.shape)}"
        machine.note(
            "torch.compile",
            f"a matrix product {sizes} is assumed to be {'faster' if faster else 'no faster'} with padding; "
            "a real run times both",
        )
        return faster

    put.set(pad_mm, "_should_pad", _should_pad)
    put.set(pad_mm, "is_padded_faster", is_padded_faster)
    put.set(pad_mm, "no_dispatch", nullcontext)
    # A time that was kept would leave the bias of a product a fake tensor in the next trial.
    put.set(pad_mm, "get_cached_base_mm_benchmark_time", lambda key: None)


def _algorithms(put: Patches, machine: Machine, visibility: Visibility) -> None:
    """Products and convolutions under max-autotune, for which Inductor times the libraries' kernels and its own."""
    from torch._inductor.select_algorithm import AlgorithmSelectorCache, ExternKernelCaller, create_inputs_key
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    original: Any = AlgorithmSelectorCache.__call__
    timed: set[tuple[str, str]] = set()

    def __call__(
        cache: Any, name: str, choices: list[Any], input_nodes: Any, layout: Any, input_gen_fns: Any = None, **more: Any
    ) -> Any:
        """Choose what the default mode runs: the library's kernel, or the first where there is none."""
        if len(choices) < 2 or layout.device.type != "cuda":
            return original(cache, name, choices, input_nodes, layout, input_gen_fns, **more)
        key = name, create_inputs_key(input_nodes)
        if key not in timed:
            timed.add(key)
            with unset_fake_temporarily(), visibility.show(), warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # torch looks at storages in a way that it warns of
                arguments = cache.get_inputs(choices, input_nodes, layout, input_gen_fns)
                buffer = torch.empty((machine.gpu.l2_bytes or 0) // 4, dtype=torch.int, device="cuda")
                del arguments, buffer
            machine.note(
                "torch.compile",
                f"max-autotune: {name} is taken to run the kernel of the default mode; a real run times {len(choices)}",
            )
        libraries = [choice for choice in choices if isinstance(choice, ExternKernelCaller)]
        # The default mode adds a bias in the product, which is what cuBLAS is asked for under another name.
        libraries.sort(key=lambda choice: choice.name.startswith("bias_"))
        return original(cache, name, [*libraries, choices[0]][:1], input_nodes, layout, input_gen_fns, **more)

    put.set(AlgorithmSelectorCache, "__call__", __call__)
