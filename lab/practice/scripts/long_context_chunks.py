"""A long document in segments with a memory of the past (Transformer-XL), attention with a sliding window by a mask, loss in chunks."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
dim, heads, segment = 768, 12, 1024


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, past):
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, heads, -1).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        total = k.shape[2]
        rows = torch.arange(total - n, total, device=x.device)[:, None]
        columns = torch.arange(total, device=x.device)[None]
        mask = (columns <= rows) & (columns > rows - 768)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, dim))
        return x + self.mlp(x), (k[:, :, -segment:].detach(), v[:, :, -segment:].detach())


embedding, layers, head = (
    nn.Embedding(32000, dim).cuda(),
    nn.ModuleList(Layer() for _ in range(6)).cuda(),
    nn.Linear(dim, 32000).cuda(),
)
parameters = [*embedding.parameters(), *layers.parameters(), *head.parameters()]
optimizer = torch.optim.RAdam(parameters, lr=1e-4, decoupled_weight_decay=True)
for step in range(2):
    document = torch.randint(0, 32000, (2, 4 * segment + 1), device="cuda")
    memory = [None] * 6
    for start in range(0, 4 * segment, segment):
        ids, labels = document[:, start : start + segment], document[:, start + 1 : start + segment + 1]
        with torch.autocast("cuda", torch.bfloat16):
            x = embedding(ids)
            for i, layer in enumerate(layers):
                x, memory[i] = checkpoint(layer, x, memory[i], use_reentrant=False) if i % 2 else layer(x, memory[i])
            loss = 0
            for part, wanted in zip(x.split(256, 1), labels.split(256, 1), strict=True):
                loss = (
                    loss
                    + checkpoint(
                        lambda p, w: F.cross_entropy(head(p).float().flatten(0, 1), w.flatten()),
                        part,
                        wanted,
                        use_reentrant=False,
                    )
                    / 4
                )
        (loss / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
