"""A spatial transformer: affine_grid and grid_sample, with every mode of interpolate on the way."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
localize = nn.Sequential(
    nn.Conv2d(3, 32, 7, 2),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 5),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Linear(1024, 6),
).cuda()
network = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 3, 3, padding=1)).cuda()
optimizer = torch.optim.Adam([*localize.parameters(), *network.parameters()], lr=1e-4)
for step in range(5):
    images = torch.randn(32, 3, 192, 192, device="cuda")
    theta = localize(images).view(-1, 2, 3) + torch.eye(2, 3, device="cuda")
    grid = F.affine_grid(theta, images.size(), align_corners=False)
    x = F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    x = x + F.grid_sample(images, grid, mode="bicubic", padding_mode="zeros", align_corners=True)
    small = F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True)
    large = F.interpolate(small, size=(192, 192), mode="bicubic", align_corners=False)
    near = F.interpolate(small, scale_factor=2, mode="nearest-exact") + F.interpolate(small, scale_factor=2)
    area = F.interpolate(network(large + near), size=64, mode="area")
    loss = F.l1_loss(area, F.adaptive_avg_pool2d(images, 64)) + F.smooth_l1_loss(large, images)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
