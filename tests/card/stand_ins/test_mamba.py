"""mamba-ssm and causal-conv1d where they are not installed."""

from __future__ import annotations

import importlib.util

import pytest
import torch

import vramcast

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mamba_ssm") is not None, reason="the real one is installed")

BATCH, CHANNELS, LENGTH, STATES = 2, 512, 4096, 16
TENSOR = BATCH * CHANNELS * LENGTH * 2


def test_convolution_keeps_its_output_alone() -> None:
    with vramcast.virtual_gpu("h200", packages=["causal-conv1d"]):
        from causal_conv1d import causal_conv1d_fn

        x = torch.randn(BATCH, CHANNELS, LENGTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        weight = torch.randn(CHANNELS, 4, device="cuda", requires_grad=True)
        before = torch.cuda.memory_allocated()
        out = causal_conv1d_fn(x, weight, activation="silu")
        assert torch.cuda.memory_allocated() - before == TENSOR
        out.sum().backward()
        assert x.grad is not None and weight.grad is not None and weight.grad.dtype == torch.float32


def test_scan_keeps_states_at_the_end_of_each_chunk() -> None:
    with vramcast.virtual_gpu("h200", packages=["mamba-ssm"]):
        from mamba_ssm import selective_scan_fn

        u, delta, z = (
            torch.randn(BATCH, CHANNELS, LENGTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            for _ in range(3)
        )
        decay = -torch.rand(CHANNELS, STATES, device="cuda")
        b, c = (torch.randn(BATCH, STATES, LENGTH, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        before = torch.cuda.memory_allocated()
        out = selective_scan_fn(u, delta, decay, b, c, z=z, delta_softplus=True)
        states = BATCH * CHANNELS * 2 * (2 * STATES) * 4  # two chunks of 2,048 steps
        assert torch.cuda.memory_allocated() - before == 2 * TENSOR + states
        out.sum().backward()
        assert u.grad is not None and delta.grad is not None and z.grad is not None


def test_a_layer_computes_its_convolution_twice() -> None:
    with vramcast.virtual_gpu("h200", packages=["mamba-ssm"]) as card:
        from mamba_ssm import Mamba

        layer = Mamba(256, device="cuda", dtype=torch.bfloat16)
        x = torch.randn(BATCH, LENGTH, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        torch.mm(x[0].detach(), layer.in_proj.weight.detach().t())  # cuBLAS takes its workspace
        before = torch.cuda.memory_allocated()
        out = layer(x)
        kept = torch.cuda.memory_allocated() - before
        out.sum().backward()
        assert all(parameter.grad is not None for parameter in layer.parameters())
    # xz, the scan's output, what x_proj gives, B and C, states, the decay and its exponential, a bias, the result.
    projected = BATCH * LENGTH * (16 + 2 * STATES) * 2
    bc = 2 * BATCH * STATES * LENGTH * 2
    states = BATCH * 512 * 2 * (2 * STATES) * 4
    small = 2 * (512 * STATES * 4) + 512 * 4
    assert kept == 3 * TENSOR + projected + bc + states + small + BATCH * LENGTH * 256 * 2
    assert "DaoAILab._causal_conv1d_fwd_cpp" in card.trace().ops


def test_mamba_2_is_left_to_the_package_itself() -> None:
    with vramcast.virtual_gpu("h200", packages=["mamba-ssm"]):
        import mamba_ssm

        with pytest.raises(ImportError, match="pip install --no-build-isolation --no-deps mamba-ssm"):
            mamba_ssm.Mamba2  # noqa: B018
