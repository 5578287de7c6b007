"""A Mamba-like block by hand: causal depthwise conv, input-dependent scan in chunks, gating."""

import torch
import torch.nn.functional as F
from torch import nn


class Mamba(nn.Module):
    def __init__(self, width=512, state=16, expand=2):
        super().__init__()
        inner = width * expand
        self.inner, self.state = inner, state
        self.inp, self.out = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)
        self.conv = nn.Conv1d(inner, inner, 4, groups=inner, padding=3)
        self.x, self.dt = nn.Linear(inner, 32 + 2 * state, bias=False), nn.Linear(32, inner)
        self.a_log, self.d = (
            nn.Parameter(torch.log(torch.arange(1, state + 1).float()).repeat(inner, 1)),
            nn.Parameter(torch.ones(inner)),
        )
        self.norm = nn.RMSNorm(width)

    def forward(self, u):
        b, length, _ = u.shape
        x, z = self.inp(self.norm(u)).chunk(2, -1)
        x = F.silu(self.conv(x.transpose(1, 2))[..., :length].transpose(1, 2))
        dt, B, C = self.x(x).split([32, self.state, self.state], -1)
        dt = F.softplus(self.dt(dt))
        A = -self.a_log.exp()
        h = x.new_zeros(b, self.inner, self.state)
        ys = []
        for part in range(0, length, 32):
            s = slice(part, part + 32)
            log_decay = (dt[:, s, :, None] * A).cumsum(1)
            inp = dt[:, s, :, None] * B[:, s, None, :] * x[:, s, :, None]
            states = log_decay.exp() * (h[:, None] + (inp * (-log_decay).clamp(max=60).exp()).cumsum(1))
            ys.append(torch.einsum("bldn,bln->bld", states, C[:, s]))
            h = states[:, -1]
        return u + self.out((torch.cat(ys, 1) + self.d * x) * F.silu(z))


torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(8000, 512), Mamba(), Mamba(), nn.Linear(512, 8000)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(4):
    ids = torch.randint(0, 8000, (4, 257), device="cuda")
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
