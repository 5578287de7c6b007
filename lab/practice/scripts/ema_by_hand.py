"""A small diffusion model: EMA kept by hand with foreach, sampled from with the averaged weights."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    def __init__(self, i, o, t=256):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(8, i), nn.Conv2d(i, o, 3, padding=1)
        self.n2, self.c2 = nn.GroupNorm(8, o), nn.Conv2d(o, o, 3, padding=1)
        self.time, self.skip = nn.Linear(t, o), nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, t):
        h = self.c1(F.silu(self.n1(x))) + self.time(t)[:, :, None, None]
        return self.skip(x) + self.c2(F.silu(self.n2(h)))


class UNet(nn.Module):
    def __init__(self, w=96):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(128, 256), nn.SiLU(), nn.Linear(256, 256))
        self.enter = nn.Conv2d(3, w, 3, padding=1)
        self.d1, self.d2, self.m = Residual(w, w), Residual(w, 2 * w), Residual(2 * w, 2 * w)
        self.u2, self.u1, self.out = Residual(4 * w, w), Residual(2 * w, w), nn.Conv2d(w, 3, 3, padding=1)

    def forward(self, x, t):
        f = torch.exp(-9.2 * torch.arange(64, device=x.device) / 64)
        t = self.time(torch.cat([(t[:, None] * f).sin(), (t[:, None] * f).cos()], 1))
        a = self.d1(self.enter(x), t)
        b = self.d2(F.avg_pool2d(a, 2), t)
        m = self.m(b, t)
        y = self.u2(torch.cat([m, b], 1), t)
        return self.out(self.u1(torch.cat([F.interpolate(y, scale_factor=2), a], 1), t))


torch.manual_seed(0)
model = UNet().cuda()
ema = copy.deepcopy(model).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
alphas = torch.linspace(0.9999, 0.98, 1000, device="cuda").cumprod(0)
for step in range(5):
    x = torch.randn(64, 3, 64, 64, device="cuda")
    t = torch.randint(0, 1000, (64,), device="cuda")
    noise = torch.randn_like(x)
    a = alphas[t][:, None, None, None]
    loss = F.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t.float()), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        old, new = list(ema.parameters()), list(model.parameters())
        torch._foreach_mul_(old, 0.999)
        torch._foreach_add_(old, new, alpha=0.001)
    if step % 2 == 1:
        with torch.no_grad():
            sample = torch.randn(128, 3, 64, 64, device="cuda")
            for s in reversed(range(0, 1000, 250)):
                a = alphas[s]
                e = ema(sample, torch.full((128,), float(s), device="cuda"))
                sample = (sample - (1 - a).sqrt() * e) / a.sqrt()
            sample.clamp_(-1, 1)
print(loss.item())
