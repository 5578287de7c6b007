"""Patches with unfold and fold: local attention over windows, dynamic filters, overlapping reconstruction."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
filters = nn.Conv2d(32, 9 * 4, 3, padding=1).cuda()
enter, leave = nn.Conv2d(3, 32, 3, padding=1).cuda(), nn.Conv2d(32, 3, 1).cuda()
norm, mixer = nn.GroupNorm(4, 32).cuda(), nn.Linear(32 * 64, 256).cuda()
back = nn.Linear(256, 32 * 64).cuda()
optimizer = torch.optim.Adam([p for m in (filters, enter, leave, norm, mixer, back) for p in m.parameters()], lr=1e-3)
for step in range(5):
    images = torch.randn(16, 3, 128, 128, device="cuda")
    x = norm(enter(images))
    weights = filters(x).view(16, 4, 9, -1).softmax(2)
    patches = F.unfold(x, 3, padding=1).view(16, 4, 8, 9, -1)
    x = x + torch.einsum("bgcki,bgki->bgci", patches, weights).reshape(16, 32, 128, 128)
    columns = F.unfold(x, 8, stride=4).transpose(1, 2)
    columns = back(F.gelu(mixer(columns))).transpose(1, 2)
    count = F.fold(torch.ones_like(columns), (128, 128), 8, stride=4)
    x = x + F.fold(columns, (128, 128), 8, stride=4) / count
    tiles = x.unfold(2, 16, 16).unfold(3, 16, 16).mean((-1, -2))
    shuffled = F.pixel_shuffle(x, 2).mean(1, keepdim=True)
    loss = F.mse_loss(leave(x), images) + tiles.var() + F.pixel_unshuffle(shuffled, 2).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
