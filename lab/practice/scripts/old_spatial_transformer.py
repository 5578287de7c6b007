"""The spatial transformer of the tutorials: grid_sample with aligned corners, which cuDNN computes."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
localize = nn.Sequential(
    nn.Conv2d(3, 16, 7, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 6)
).cuda()
classify = nn.Sequential(
    nn.Conv2d(3, 64, 5), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 10)
).cuda()
optimizer = torch.optim.SGD([*localize.parameters(), *classify.parameters()], lr=0.01)
for step in range(5):
    x, y = torch.randn(256, 3, 128, 128, device="cuda"), torch.randint(0, 10, (256,), device="cuda")
    theta = localize(x).view(-1, 2, 3)
    grid = F.affine_grid(theta, x.size(), align_corners=True)
    loss = F.cross_entropy(classify(F.grid_sample(x, grid, align_corners=True)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
