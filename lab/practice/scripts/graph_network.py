"""A graph network from plain operators: scatter_reduce, index_add, scatter softmax over edges, pooled by graph."""

import torch
import torch.nn.functional as F
from torch import nn


class EdgeAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.norm = nn.LayerNorm(width)

    def forward(self, x, edges):
        source, target = edges
        n = x.shape[0]
        q, k, v = (f(x).view(n, self.heads, -1) for f in (self.q, self.k, self.v))
        score = (q[target] * k[source]).sum(-1) / q.shape[-1] ** 0.5
        index = target[:, None].expand_as(score)
        top = torch.full((n, self.heads), float("-inf"), device=x.device)
        top = top.scatter_reduce(0, index, score, "amax", include_self=True)
        weight = (score - top.detach()[target]).exp()
        total = torch.zeros(n, self.heads, device=x.device).scatter_add(0, index, weight)
        weight = weight / (total[target] + 1e-9)
        message = (v[source] * weight[..., None]).flatten(1)
        return self.norm(x + torch.zeros_like(x).index_add(0, target, message))


torch.manual_seed(0)
nodes, edge_count, graphs = 100_000, 800_000, 512
layers = nn.ModuleList(EdgeAttention(128, 8) for _ in range(3)).cuda()
embed, head = nn.Embedding(100, 128).cuda(), nn.Linear(384, 10).cuda()
optimizer = torch.optim.Adam([*layers.parameters(), *embed.parameters(), *head.parameters()], lr=1e-3)
for step in range(4):
    kinds = torch.randint(0, 100, (nodes,), device="cuda")
    edges = torch.randint(0, nodes, (2, edge_count), device="cuda")
    graph = torch.randint(0, graphs, (nodes,), device="cuda").sort().values
    x = embed(kinds)
    for layer in layers:
        x = layer(x, edges)
    where = graph[:, None].expand_as(x)
    zeros = torch.zeros(graphs, 128, device="cuda")
    pooled = torch.cat(
        [zeros.scatter_reduce(0, where, x, how, include_self=False) for how in ("sum", "mean", "amax")], 1
    )
    loss = F.cross_entropy(head(pooled), torch.randint(0, 10, (graphs,), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
