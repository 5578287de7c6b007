"""Kernels of flash-attn and mamba-ssm, run alone: what a call keeps, and what forward and backward take at most.

    python package_kernels.py RESULT          on a real card, with the packages' Triton parts on PYTHONPATH
    python -m lab.compiled.package_kernels    on the virtual card, with the stand-ins, beside what was measured

flash-attn's compiled attention cannot be carried to the card: PyTorch's own copy of it is measured in its place.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

MEASURED = Path(__file__).parent / "measured" / "package-kernels-h200.json"
HALF = torch.bfloat16
CASES: dict[str, Callable[[], tuple[Callable[[], Any], Any]]] = {}
"""Each makes its inputs and gives the call."""


def case(make: Callable[[], Any]) -> Callable[[], Any]:
    CASES[make.__name__.replace("_", "-")] = make
    return make


def tensor(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True)


class _Aten(torch.autograd.Function):
    """PyTorch's copy of flash-attn 2, called as flash-attn calls its own."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, offsets: Any, longest: int, causal: bool) -> Any:
        out, sums, seed, unused, _ = torch.ops.aten._flash_attention_forward(
            q, k, v, offsets, offsets, longest, longest, 0.0, causal, False, scale=q.shape[-1] ** -0.5
        )
        ctx.save_for_backward(q, k, v, out, sums, seed, unused, offsets)
        ctx.options = longest, causal
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        q, k, v, out, sums, seed, unused, offsets = ctx.saved_tensors
        longest, causal = ctx.options
        gradients = torch.ops.aten._flash_attention_backward(
            grad, q, k, v, out, sums, offsets, offsets, longest, longest, 0.0, causal, seed, unused,
            scale=q.shape[-1] ** -0.5,
        )  # fmt: skip
        return *gradients, None, None, None


def attention(q: Any, k: Any, v: Any, causal: bool, offsets: Any = None, longest: int = 0) -> Any:
    try:
        import flash_attn
    except ImportError:
        return _Aten.apply(q, k, v, offsets, longest or q.shape[1], causal)
    if not hasattr(flash_attn, "flash_attn_func"):  # its Triton parts alone
        return _Aten.apply(q, k, v, offsets, longest or q.shape[1], causal)
    if offsets is None:
        return flash_attn.flash_attn_func(q, k, v, causal=causal)
    return flash_attn.flash_attn_varlen_func(q, k, v, offsets, offsets, longest, longest, causal=causal)


def _fixed(batch: int, length: int, heads: int, shared: int, width: int, causal: bool) -> Any:
    q = tensor(batch, length, heads, width)
    k, v = tensor(batch, length, shared, width), tensor(batch, length, shared, width)
    return lambda: attention(q, k, v, causal)


@case
def flash_causal() -> Any:
    return _fixed(4, 2048, 12, 12, 64, True)


@case
def flash_shared_keys() -> Any:
    return _fixed(2, 3000, 32, 8, 128, True)


@case
def flash_wide() -> Any:
    return _fixed(2, 1024, 8, 8, 160, False)


@case
def flash_few_heads() -> Any:
    return _fixed(1, 256, 4, 4, 64, False)


@case
def flash_many_keys_few_queries() -> Any:
    q, k, v = tensor(1, 128, 8, 64), tensor(1, 4096, 8, 64), tensor(1, 4096, 8, 64)
    return lambda: attention(q, k, v, False)


@case
def flash_varied_lengths() -> Any:
    lengths = [700, 300, 1500, 96]
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32).cuda()
    total = sum(lengths)
    q, k, v = (tensor(total, 12, 96) for _ in range(3))
    return lambda: attention(q, k, v, True, offsets, max(lengths))


@case
def rms_norm_with_residual() -> Any:
    from flash_attn.ops.triton.layer_norm import rms_norm_fn

    x, weight = tensor(4, 2048, 1024), tensor(1024)
    residual = tensor(4, 2048, 1024, dtype=torch.float32)
    return lambda: rms_norm_fn(x, weight, None, residual=residual, prenorm=True, residual_in_fp32=True)


@case
def layer_norm_with_dropout() -> Any:
    from flash_attn.ops.triton.layer_norm import layer_norm_fn

    x, weight, bias = tensor(4, 2048, 1024), tensor(1024), tensor(1024)
    return lambda: layer_norm_fn(x, weight, bias, dropout_p=0.1)


@case
def cross_entropy() -> Any:
    from flash_attn.ops.triton.cross_entropy import cross_entropy_loss

    logits, labels = tensor(4096, 32000), torch.randint(0, 32000, (4096,)).cuda()
    return lambda: cross_entropy_loss(logits, labels)[0]


@case
def rotary() -> Any:
    from flash_attn.layers.rotary import apply_rotary_emb

    x, cos, sin = tensor(4, 2048, 12, 64), tensor(2048, 24).detach(), tensor(2048, 24).detach()
    return lambda: apply_rotary_emb(x, cos, sin)


@case
def mamba_2_scan() -> Any:
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    x, dt = tensor(2, 2048, 16, 64), tensor(2, 2048, 16)
    decay = -torch.rand(16, device="cuda")
    b, c = tensor(2, 2048, 1, 128), tensor(2, 2048, 1, 128)
    skip, bias = torch.ones(16, device="cuda"), torch.zeros(16, device="cuda")
    return lambda: mamba_chunk_scan_combined(x, dt, decay, b, c, 256, D=skip, dt_bias=bias, dt_softplus=True)


def measure(make: Callable[[], Any]) -> dict[str, int]:
    """Bytes above what there was before: after the second forward pass, and at most in it and in the backward pass.
    The first pass times kernels; what it took is a figure of its own."""
    torch.cuda.empty_cache()  # blocks of another case would be cut up in other ways
    call = make()
    first = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    _backward(call())
    found = {"first_pass": torch.cuda.max_memory_allocated() - first}
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = call()
    found |= {"kept": torch.cuda.memory_allocated() - before, "forward": torch.cuda.max_memory_allocated() - before}
    torch.cuda.reset_peak_memory_stats()
    _backward(out)
    return found | {"backward": torch.cuda.max_memory_allocated() - before}


def _backward(out: Any) -> None:
    results = out if isinstance(out, tuple) else (out,)
    torch.autograd.backward([r for r in results if r.requires_grad], [torch.ones_like(r) for r in results])


def main() -> None:
    if len(sys.argv) > 1:
        found: dict[str, Any] = {}
        for name, make in CASES.items():
            try:
                found[name] = measure(make)
            except Exception as error:
                found[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
            print(name, found[name], flush=True)
        Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
        return
    import vramcast

    measured = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    for name, make in CASES.items():
        with vramcast.virtual_gpu("h200", packages=["flash-attn"]):
            try:
                ours = measure(make)
            except ImportError as error:
                print(f"{name:30} {error}")
                continue
        real = measured.get(name, {})
        print(f"{name:30}", *(f"{what} {n:,} {n - real[what]:+,}" if what in real else f"{what} {n:,}"
                              for what, n in ours.items()))  # fmt: skip


if __name__ == "__main__":
    main()
