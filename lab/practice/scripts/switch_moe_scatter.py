"""A switch transformer layer with capacity: tokens scattered into expert slots, einsum over experts, gathered back."""

import torch
import torch.nn.functional as F
from torch import nn


class SwitchFFN(nn.Module):
    def __init__(self, width, hidden, experts, factor=1.25):
        super().__init__()
        self.experts, self.factor = experts, factor
        self.gate = nn.Linear(width, experts)
        self.w1 = nn.Parameter(torch.randn(experts, width, hidden) * 0.02)
        self.w2 = nn.Parameter(torch.randn(experts, hidden, width) * 0.02)

    def forward(self, x):
        tokens, width = x.shape
        capacity = int(self.factor * tokens / self.experts)
        probability = F.softmax(self.gate(x).float(), -1)
        weight, expert = probability.max(-1)
        hot = F.one_hot(expert, self.experts)
        position = (hot.cumsum(0) * hot).sum(-1) - 1
        kept = position < capacity
        slot = torch.where(kept, expert * capacity + position, self.experts * capacity)
        buffer = x.new_zeros(self.experts * capacity + 1, width).index_copy(0, slot, x)
        inside = buffer[:-1].view(self.experts, capacity, width)
        inside = torch.einsum("ecd,edh->ech", inside, self.w1).relu()
        inside = torch.einsum("ech,ehd->ecd", inside, self.w2).reshape(-1, width)
        inside = torch.cat([inside, inside.new_zeros(1, width)])
        out = inside.gather(0, slot[:, None].expand(-1, width)) * weight[:, None].to(x.dtype)
        return out, (hot.float().mean(0) * probability.mean(0)).sum() * self.experts


torch.manual_seed(0)
layers = nn.ModuleList(SwitchFFN(768, 3072, 16) for _ in range(3)).cuda()
norms = nn.ModuleList(nn.LayerNorm(768) for _ in range(3)).cuda()
optimizer = torch.optim.AdamW([*layers.parameters(), *norms.parameters()], lr=1e-4)
for step in range(5):
    x = torch.randn(16384, 768, device="cuda")
    target, extra = torch.randn_like(x), 0.0
    for layer, norm in zip(layers, norms):
        update, balance = layer(norm(x))
        x, extra = x + update, extra + balance
    loss = F.mse_loss(x, target) + 0.01 * extra
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
