"""A recommender with sparse embedding gradients: SparseAdam for the tables, Adam for the rest."""

import torch
from torch import nn


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(1_000_000, 128, sparse=True)
        self.items = nn.EmbeddingBag(500_000, 128, mode="mean", sparse=True)
        self.top = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, users, items, offsets):
        return self.top(torch.cat([self.users(users), self.items(items, offsets)], 1)).squeeze(1)


torch.manual_seed(0)
model = Recommender().cuda()
sparse = torch.optim.SparseAdam([*model.users.parameters(), *model.items.parameters()], lr=1e-3)
dense = torch.optim.Adam(model.top.parameters(), lr=1e-3)
for step in range(5):
    users = torch.randint(0, 1_000_000, (65536,)).cuda()
    items = torch.randint(0, 500_000, (65536 * 10,)).cuda()
    offsets = torch.arange(0, 65536 * 10, 10).cuda()
    clicked = torch.randint(0, 2, (65536,)).float().cuda()
    loss = nn.functional.binary_cross_entropy_with_logits(model(users, items, offsets), clicked)
    sparse.zero_grad()
    dense.zero_grad()
    loss.backward()
    sparse.step()
    dense.step()
print(loss.item())
