"""Compiled code among several ranks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.card.distributed.conftest import Start
from vramcast.card.compiled.compiler import why_not
from vramcast.card.device.installed_torch import INSTALLED

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.filterwarnings("ignore"),
]


class Block(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x))


@pytest.mark.xfail(INSTALLED >= (2, 14), reason="torch 2.14 compares the devices of what it traces")
def test_a_layer_whose_input_is_still_being_sent_is_compiled(start: Start) -> None:
    """The output of a row-wise layer waits for its sum (AsyncCollectiveTensor) until somebody reads it; here the next
    layer does, which is compiled."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    card = start(0, 2)
    mesh = init_device_mesh("cuda", (2,))
    first, second = (nn.Linear(64, 64, bias=False, device="cuda") for _ in range(2))
    parallelize_module(first, mesh, RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)))
    parallelize_module(second, mesh, ColwiseParallel(input_layouts=Shard(0), output_layouts=Shard(0)))
    block = Block(second)
    block.compile(fullgraph=True)
    for _ in range(2):
        sent = first(torch.randn(32, 64, device="cuda"))
        assert isinstance(sent, AsyncCollectiveTensor)
        block(sent).sum().backward()
    assert first.weight.grad is not None
    calls = card.trace().calls
    assert calls is not None and calls.ops.count("compiled graph") > 0
