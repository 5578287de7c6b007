"""apex where it is not installed."""

from __future__ import annotations

import importlib.util

import pytest
import torch

import vramcast

pytestmark = pytest.mark.skipif(importlib.util.find_spec("apex") is not None, reason="the real one is installed")

ROWS, WIDTH = 4096, 1024
TENSOR = ROWS * WIDTH * 2


@pytest.mark.parametrize(("name", "statistics"), [("FusedLayerNorm", 2), ("FusedRMSNorm", 1)])
def test_norms_keep_output_and_statistics(name: str, statistics: int) -> None:
    with vramcast.virtual_gpu("h200", packages=["apex"]):
        import apex

        norm = getattr(apex.normalization, name)(WIDTH).cuda().bfloat16()
        x = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        before = torch.cuda.memory_allocated()
        out = norm(x)
        assert torch.cuda.memory_allocated() - before == TENSOR + statistics * ROWS * 4
        out.sum().backward()
        assert norm.weight.grad.shape == (WIDTH,)


def test_adam_keeps_its_state_in_fp32() -> None:
    with vramcast.virtual_gpu("h200", packages=["apex"]):
        from apex.optimizers import FusedAdam

        layer = torch.nn.Linear(WIDTH, WIDTH, bias=False, device="cuda", dtype=torch.bfloat16)
        optimizer = FusedAdam(layer.parameters())
        layer(torch.randn(8, WIDTH, device="cuda", dtype=torch.bfloat16)).sum().backward()
        before = torch.cuda.memory_allocated()
        optimizer.step()
        assert torch.cuda.memory_allocated() - before == 2 * WIDTH * WIDTH * 4
        optimizer.zero_grad()
        assert layer.weight.grad is None


def test_amp_is_named_as_what_it_was() -> None:
    with vramcast.virtual_gpu("h200", packages=["apex"]):
        import apex

        with pytest.raises(ImportError, match=r"torch\.autocast and torch\.amp\.GradScaler do the same"):
            apex.amp  # noqa: B018


def test_lamb_keeps_its_state_in_the_weights_dtype() -> None:
    with vramcast.virtual_gpu("h200", packages=["apex"]):
        from apex.optimizers import FusedLAMB

        layer = torch.nn.Linear(WIDTH, WIDTH, bias=False, device="cuda", dtype=torch.float16)
        optimizer = FusedLAMB(layer.parameters())
        layer(torch.randn(8, WIDTH, device="cuda", dtype=torch.float16)).sum().backward()
        before = torch.cuda.memory_allocated()
        optimizer.step()
        assert torch.cuda.memory_allocated() - before == 2 * WIDTH * WIDTH * 2
        with pytest.raises(RuntimeError, match="FusedLAMB only support fp16 and fp32"):
            optimizer = FusedLAMB(layer.bfloat16().parameters())
            layer.weight.grad = torch.empty_like(layer.weight)
            optimizer.step()
