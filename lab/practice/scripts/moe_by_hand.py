"""A mixture of experts written by hand: top-2 routing, index_add_, a load-balancing loss."""

import torch
import torch.nn.functional as F
from torch import nn


class Experts(nn.Module):
    def __init__(self, width, hidden, count, chosen=2):
        super().__init__()
        self.chosen, self.count = chosen, count
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)) for _ in range(count)
        )

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        probabilities = self.router(x).softmax(-1)
        weights, indices = probabilities.topk(self.chosen, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        output = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slots = torch.where(indices == number)
            if rows.numel() == 0:
                continue
            output.index_add_(0, rows, expert(x[rows]) * weights[rows, slots, None])
        load = F.one_hot(indices, self.count).float().mean((0, 1))
        balance = self.count * (load * probabilities.mean(0)).sum()
        return output.view(shape), balance


torch.manual_seed(0)
layers = nn.ModuleList(Experts(1024, 2048, 8) for _ in range(4)).cuda()
optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-4)
for step in range(5):
    x = torch.randn(16, 512, 1024, device="cuda")
    target = torch.randn_like(x)
    balance = 0.0
    for layer in layers:
        update, extra = layer(F.layer_norm(x, (1024,)))
        x, balance = x + update, balance + extra
    loss = F.mse_loss(x, target) + 0.01 * balance
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
