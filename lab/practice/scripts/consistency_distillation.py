"""Consistency distillation: a teacher, a student and its average, a pseudo-Huber loss, sampling after training; group norm U-Net."""

import copy
import math

import torch
from torch import nn

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.a = nn.Sequential(nn.GroupNorm(8, i), nn.SiLU(), nn.Conv2d(i, o, 3, padding=1))
        self.t, self.skip = nn.Linear(256, 2 * o), nn.Conv2d(i, o, 1)
        self.b = nn.Sequential(nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(o, o, 3, padding=1))

    def forward(self, x, t):
        scale, shift = self.t(t)[..., None, None].chunk(2, 1)
        return self.b(self.a(x) * (1 + scale) + shift) + self.skip(x)


class UNet(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.into, self.out = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        sizes = [width, 2 * width, 3 * width]
        self.down = nn.ModuleList(Block(i, o) for i, o in zip([width, *sizes], sizes, strict=False))
        self.attention = nn.MultiheadAttention(sizes[-1], 4, batch_first=True)
        self.up = nn.ModuleList(Block(2 * o, i) for i, o in zip([width, *sizes], sizes, strict=False))

    def forward(self, x, sigma):
        angles = sigma.log()[:, None] * torch.exp(torch.linspace(0, 5, 128, device=x.device))
        t = torch.cat([angles.sin(), angles.cos()], -1)
        h, kept = self.into(x / (sigma**2 + 0.25).sqrt()[:, None, None, None]), []
        for block in self.down:
            h = block(h, t)
            kept.append(h)
            h = nn.functional.avg_pool2d(h, 2)
        flat = h.flatten(2).transpose(1, 2)
        h = h + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).view_as(h)
        for block in reversed(self.up):
            h = block(torch.cat([nn.functional.interpolate(h, scale_factor=2), kept.pop()], 1), t)
        return x + self.out(h) * sigma[:, None, None, None]


student = UNet().cuda()
average, teacher = copy.deepcopy(student).requires_grad_(False), copy.deepcopy(student).eval().requires_grad_(False)
optimizer = torch.optim.RAdam(student.parameters(), lr=1e-4)
for step in range(4):
    x = torch.randn(16, 3, 64, 64, device="cuda")
    high = torch.exp(torch.randn(16, device="cuda") * 1.2 - 1.2) + 0.1
    low = high * 0.9
    noisy = x + torch.randn_like(x) * high[:, None, None, None]
    state = torch.get_rng_state(), torch.cuda.get_rng_state()
    with torch.no_grad():
        guess = teacher(noisy, high)
        nearer = noisy + (low - high)[:, None, None, None] * (noisy - guess) / high[:, None, None, None]
        goal = average(nearer, low)
    torch.cuda.set_rng_state(state[1])
    difference = student(noisy, high) - goal
    loss = ((difference.flatten(1).square().sum(1) + 0.01) ** 0.5 - 0.1).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    torch._foreach_lerp_(list(average.parameters()), list(student.parameters()), 1 - math.exp(-0.01))
with torch.inference_mode():
    sample = average(torch.randn(64, 3, 64, 64, device="cuda") * 80, torch.full((64,), 80.0, device="cuda"))
print(loss.item(), sample.std().item())
