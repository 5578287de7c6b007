"""A mixture of experts with a capacity: tokens are placed by one-hot positions, experts are one batched product."""

import torch
import torch.nn.functional as F
from torch import nn


class Experts(nn.Module):
    def __init__(self, width, hidden, count, top=2, factor=1.25):
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.w1 = nn.Parameter(torch.randn(count, width, hidden) * 0.02)
        self.w2 = nn.Parameter(torch.randn(count, hidden, width) * 0.02)
        self.count, self.top, self.factor = count, top, factor

    def forward(self, x):
        tokens = x.flatten(0, 1)
        scores = self.router(tokens).float().softmax(-1)
        weights, chosen = scores.topk(self.top, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        capacity = int(self.factor * self.top * len(tokens) / self.count)
        hot = F.one_hot(chosen, self.count)
        place = (hot.flatten(0, 1).cumsum(0) - 1).view_as(hot).mul(hot).sum(-1)
        kept = place < capacity
        slot = torch.where(kept, chosen * capacity + place, self.count * capacity)
        gathered = tokens.new_zeros(self.count * capacity + 1, tokens.shape[1])
        gathered = gathered.index_add(0, slot.flatten(), tokens.repeat_interleave(self.top, 0))
        hidden = F.gelu(torch.bmm(gathered[:-1].view(self.count, capacity, -1), self.w1))
        out = torch.bmm(hidden, self.w2).flatten(0, 1)
        out = torch.cat([out, out.new_zeros(1, out.shape[1])])
        mixed = (out[slot] * (weights * kept).to(out.dtype).unsqueeze(-1)).sum(1)
        balance = self.count * (scores.mean(0) * hot.float().mean((0, 1))).sum()
        return mixed.view_as(x), balance


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16000, 512)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(512, 8, 512, batch_first=True) for _ in range(4))
        self.experts = nn.ModuleList(Experts(512, 2048, 8) for _ in range(4))
        self.head = nn.Linear(512, 16000)

    def forward(self, ids):
        x, total = self.embedding(ids), 0
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        for layer, experts in zip(self.layers, self.experts):
            x = layer(x, mask, is_causal=True)
            y, balance = experts(x)
            x, total = x + y, total + balance
        return self.head(x), total


torch.manual_seed(0)
model = Model().cuda()
optimizer = torch.optim.Adamax(model.parameters(), lr=1e-3)
for step in range(4):
    ids = torch.randint(0, 16000, (16, 256), device="cuda")
    logits, balance = model(ids)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()) + 0.01 * balance
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
