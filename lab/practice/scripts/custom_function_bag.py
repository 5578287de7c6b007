"""An autograd.Function with setup_context, one that recomputes, embedding_bag with weights, a straight-through estimator (VQ)."""

import torch
import torch.nn.functional as F
from torch import nn


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * torch.sigmoid(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s * (1 + x * (1 - s)))


class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, module, x):
        ctx.module = module
        ctx.save_for_backward(x)
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            out = ctx.module(x)
        torch.autograd.backward(out, grad)
        return None, x.grad


torch.manual_seed(0)
bag = nn.EmbeddingBag(200_000, 512, mode="sum").cuda()
blocks = nn.ModuleList(nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)) for _ in range(4)).cuda()
codebook = nn.Parameter(torch.randn(8192, 512, device="cuda"))
optimizer = torch.optim.Adam([*bag.parameters(), *blocks.parameters(), codebook], lr=1e-3)
for step in range(5):
    ids = torch.randint(0, 200_000, (16384, 12), device="cuda")
    x = bag(ids, per_sample_weights=torch.rand(16384, 12, device="cuda"))
    for block in blocks:
        x = x + Recompute.apply(block, Swish.apply(x))
    distance = x.pow(2).sum(1, keepdim=True) - 2 * x @ codebook.T + codebook.pow(2).sum(1)
    chosen = F.embedding(distance.argmin(1), codebook)
    commitment = F.mse_loss(chosen.detach(), x) + F.mse_loss(chosen, x.detach())
    x = x + (chosen - x).detach()
    loss = x.square().mean() + commitment
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
