"""Documents packed into one row without padding: attention within each by nested lengths (varlen attention)."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.varlen import varlen_attn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.heads = heads

    def forward(self, x, starts, longest):
        q, k, v = self.qkv(x).view(len(x), 3, self.heads, -1).unbind(1)
        y = varlen_attn(q, k, v, starts, starts, longest, longest, window_size=(-1, 0))
        return self.out(y.flatten(1))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 8 * width // 3 * 2), nn.Linear(8 * width // 3, width)

    def forward(self, x, starts, longest):
        x = x + self.attention(self.first(x), starts, longest)
        gate, value = self.up(self.second(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * value)


class Model(nn.Module):
    def __init__(self, vocabulary=32000, width=1024, layers=8):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, 16) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids, starts, longest):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, starts, longest)
        return self.head(self.norm(x))


torch.manual_seed(0)
model = Model().to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.9, 0.95), fused=True)
generator = torch.Generator().manual_seed(1)
for step in range(5):
    lengths = torch.randint(50, 900, (16,), generator=generator)
    starts = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    ids = torch.randint(0, 32000, (int(lengths.sum()),), generator=generator)
    ids, starts, longest = ids.cuda(), starts.cuda(), int(lengths.max())
    logits = model(ids, starts, longest)
    targets = ids.roll(-1)
    targets[starts[1:].long() - 1] = -100
    loss = F.cross_entropy(logits.float(), targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
print(loss.item())
