"""Deformable convolutions of torchvision with learned offsets and masks, and RoI align."""

import torch
from torch import nn
from torchvision.ops import DeformConv2d, roi_align


class Deformable(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.offset = nn.Conv2d(i, 18, 3, padding=1)
        self.mask = nn.Conv2d(i, 9, 3, padding=1)
        self.conv = DeformConv2d(i, o, 3, padding=1)
        self.norm = nn.BatchNorm2d(o)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x, self.offset(x), self.mask(x).sigmoid())))


torch.manual_seed(0)
layers = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), Deformable(64, 128), nn.MaxPool2d(2), Deformable(128, 128)).cuda()
head = nn.Linear(128 * 49, 20).cuda()
optimizer = torch.optim.Adam([*layers.parameters(), *head.parameters()], lr=1e-4)
for step in range(5):
    images = torch.randn(16, 3, 256, 256, device="cuda")
    features = layers(images)
    corners = torch.rand(16, 16, 2, device="cuda") * 128
    boxes = list(torch.cat([corners, corners + 64], -1))
    pooled = roi_align(features, boxes, 7, spatial_scale=0.25, sampling_ratio=2)
    loss = nn.functional.cross_entropy(head(pooled.flatten(1)), torch.randint(0, 20, (256,), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
