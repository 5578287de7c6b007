"""Saved tensors packed to eight bits by hooks, and checkpoint_sequential over the upper half."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

torch.manual_seed(0)


def pack(tensor):
    if not tensor.is_floating_point() or tensor.numel() < 1 << 20 or tensor.is_leaf:
        return tensor
    scale = tensor.abs().amax().clamp(min=1e-8) / 127
    return (tensor / scale).round().to(torch.int8), scale, tensor.dtype


def unpack(packed):
    if isinstance(packed, torch.Tensor):
        return packed
    values, scale, dtype = packed
    return values.to(dtype) * scale


block = lambda: nn.TransformerEncoderLayer(768, 12, 3072, 0.1, batch_first=True, norm_first=True)
lower, upper = nn.Sequential(*[block() for _ in range(4)]).cuda(), nn.Sequential(*[block() for _ in range(4)]).cuda()
head = nn.Linear(768, 1000).cuda()
parameters = [*lower.parameters(), *upper.parameters(), *head.parameters()]
optimizer = torch.optim.NAdam(parameters, lr=1e-4)
for step in range(3):
    x = torch.randn(8, 512, 768, device="cuda")
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        hidden = lower(x)
    hidden = checkpoint_sequential(upper, 2, hidden, use_reentrant=False)
    loss = head(hidden.mean(1)).logsumexp(-1).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
