"""A 3-D U-Net for volumes: strided and transposed 3-D convolutions, instance norm, Dice loss, trilinear upsampling."""

import torch
import torch.nn.functional as F
from torch import nn


def double(i, o):
    return nn.Sequential(
        nn.Conv3d(i, o, 3, padding=1),
        nn.InstanceNorm3d(o),
        nn.LeakyReLU(0.01, inplace=True),
        nn.Conv3d(o, o, 3, padding=1),
        nn.InstanceNorm3d(o),
        nn.LeakyReLU(0.01, inplace=True),
    )


class UNet3D(nn.Module):
    def __init__(self, base=32):
        super().__init__()
        self.d1, self.d2, self.d3 = double(1, base), double(base, 2 * base), double(2 * base, 4 * base)
        self.up2, self.u2 = nn.ConvTranspose3d(4 * base, 2 * base, 2, 2), double(4 * base, 2 * base)
        self.u1 = double(3 * base, base)
        self.out = nn.Conv3d(base, 3, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool3d(a, 2))
        c = self.d3(F.avg_pool3d(b, 2))
        b = self.u2(torch.cat([self.up2(c), b], 1))
        return self.out(self.u1(torch.cat([F.interpolate(b, scale_factor=2, mode="trilinear"), a], 1)))


def dice(logits, target):
    p = logits.softmax(1)
    hot = F.one_hot(target, 3).permute(0, 4, 1, 2, 3).float()
    return 1 - (2 * (p * hot).sum((2, 3, 4)) / (p + hot).sum((2, 3, 4)).clamp(min=1e-5)).mean()


torch.manual_seed(0)
model = UNet3D().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.99, nesterov=True)
for step in range(4):
    volume = torch.randn(2, 1, 96, 96, 96, device="cuda")
    target = torch.randint(0, 3, (2, 96, 96, 96), device="cuda")
    logits = model(volume)
    loss = dice(logits, target) + F.cross_entropy(logits, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
