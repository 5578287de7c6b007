"""Blocks live in pinned host memory: hooks bring one to the card before it runs and send its gradients back."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def bring(module, *_):
    for parameter in module.parameters():
        if not parameter.is_cuda:
            parameter.host = parameter.data
            parameter.data = parameter.data.to("cuda", non_blocking=True)


def release(module, *_):
    for parameter in module.parameters():
        parameter.data = parameter.host


def take_gradient(parameter):
    gradient = parameter.grad.to("cpu", non_blocking=True)
    parameter.grad = None
    pending.append((parameter, gradient))


torch.manual_seed(0)
blocks = nn.ModuleList(Block(2048) for _ in range(6))
for parameter in blocks.parameters():
    parameter.data = parameter.data.pin_memory()
    parameter.register_post_accumulate_grad_hook(take_gradient)
for block in blocks:
    block.register_forward_pre_hook(bring)
    block.register_full_backward_pre_hook(bring)
    block.register_full_backward_hook(release)
head = nn.Linear(2048, 1000, device="cuda")
optimizer = torch.optim.SGD([{"params": blocks.parameters()}, {"params": head.parameters()}], lr=0.01, foreach=False)
pending = []
for step in range(3):
    x = torch.randn(16384, 2048, device="cuda", requires_grad=True)
    for block in blocks:
        x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
    loss = nn.functional.cross_entropy(head(x), torch.randint(0, 1000, (16384,), device="cuda"))
    loss.backward()
    torch.cuda.synchronize()
    for block in blocks:
        for parameter in block.parameters():
            parameter.data = getattr(parameter, "host", parameter.data)
    for parameter, gradient in pending:
        parameter.grad = gradient
    pending.clear()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
