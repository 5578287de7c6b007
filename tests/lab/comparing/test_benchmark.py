"""The harness of the comparison with PyTorch's MemTracker."""

from __future__ import annotations

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from lab.comparing.benchmark import fake_modules_convert


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.output = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        self.output.weight = self.embed.weight
        self.register_buffer("table", torch.zeros(3))


def test_modules_of_fake_tensors_convert_and_stay_tied() -> None:
    plain = nn.Module._apply
    with FakeTensorMode(), fake_modules_convert():
        model = Tied()
        held = model.embed.weight
        assert model.to("cpu").embed.weight is held
        model.embed.weight.requires_grad_(False)
        model.bfloat16()
        assert model.embed.weight.dtype == model.table.dtype == torch.bfloat16
        assert model.output.weight is model.embed.weight
        assert not model.embed.weight.requires_grad
    assert nn.Module._apply is plain
