"""WGAN-GP: a gradient penalty that is differentiated twice."""

import torch
from torch import nn


def block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 4, 2, 1), nn.InstanceNorm2d(o, affine=True), nn.LeakyReLU(0.2))


torch.manual_seed(0)
critic = nn.Sequential(
    nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2), block(64, 128), block(128, 256), block(256, 512), nn.Conv2d(512, 1, 4)
).cuda()
maker = nn.Sequential(
    nn.ConvTranspose2d(100, 512, 4),
    nn.BatchNorm2d(512),
    nn.ReLU(),
    nn.ConvTranspose2d(512, 256, 4, 2, 1),
    nn.BatchNorm2d(256),
    nn.ReLU(),
    nn.ConvTranspose2d(256, 128, 4, 2, 1),
    nn.BatchNorm2d(128),
    nn.ReLU(),
    nn.ConvTranspose2d(128, 64, 4, 2, 1),
    nn.BatchNorm2d(64),
    nn.ReLU(),
    nn.ConvTranspose2d(64, 3, 4, 2, 1),
    nn.Tanh(),
).cuda()
opt_c = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))
opt_m = torch.optim.Adam(maker.parameters(), lr=1e-4, betas=(0.0, 0.9))
for step in range(5):
    real = torch.randn(128, 3, 64, 64, device="cuda")
    for _ in range(3):
        fake = maker(torch.randn(128, 100, 1, 1, device="cuda")).detach()
        t = torch.rand(128, 1, 1, 1, device="cuda")
        between = (t * real + (1 - t) * fake).requires_grad_(True)
        score = critic(between)
        slope = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True, retain_graph=True)[0]
        penalty = ((slope.flatten(1).norm(2, dim=1) - 1) ** 2).mean()
        loss_c = critic(fake).mean() - critic(real).mean() + 10 * penalty
        opt_c.zero_grad()
        loss_c.backward()
        opt_c.step()
    loss_m = -critic(maker(torch.randn(128, 100, 1, 1, device="cuda"))).mean()
    opt_m.zero_grad()
    loss_m.backward()
    opt_m.step()
print(loss_c.item())
