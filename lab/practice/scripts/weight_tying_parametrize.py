"""A language model with tied weights, low-rank parametrized layers, weight_norm and orthogonal parametrizations."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal, weight_norm


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)


class TiedLM(nn.Module):
    def __init__(self, vocabulary=32000, width=768):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.up = weight_norm(nn.Linear(width, 4 * width))
        self.down = weight_norm(nn.Linear(4 * width, width), dim=1)
        self.mix = nn.Linear(width, width)
        parametrize.register_parametrization(self.mix, "weight", Symmetric())
        self.turn = orthogonal(nn.Linear(width, width, bias=False))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        with parametrize.cached():
            for _ in range(3):
                x = x + self.turn(self.mix(self.down(F.gelu(self.up(self.norm(x))))))
        return self.head(x)


torch.manual_seed(0)
model = TiedLM().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for step in range(5):
    ids = torch.randint(0, 32000, (16, 257), device="cuda")
    loss = F.cross_entropy(model(ids[:, :-1]).reshape(-1, 32000), ids[:, 1:].reshape(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
