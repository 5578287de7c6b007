"""A small StyleGAN: modulated convolutions, lazy R1, path length regularization by a second gradient, EMA."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Modulated(nn.Module):
    def __init__(self, cin, cout, style):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cout, cin, 3, 3) / (cin * 9) ** 0.5)
        self.affine = nn.Linear(style, cin)

    def forward(self, x, style):
        batch, cin, height, width = x.shape
        scale = self.affine(style) + 1
        weight = self.weight[None] * scale[:, None, :, None, None]
        weight = weight * (weight.square().sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt()
        x = x.reshape(1, batch * cin, height, width)
        y = F.conv2d(x, weight.flatten(0, 1), padding=1, groups=batch)
        return F.leaky_relu(y.view(batch, -1, height, width), 0.2)


class Generator(nn.Module):
    def __init__(self, style=256):
        super().__init__()
        self.mapping = nn.Sequential(nn.Linear(256, style), nn.LeakyReLU(0.2), nn.Linear(style, style))
        self.start = nn.Parameter(torch.randn(1, 256, 4, 4))
        widths = [256, 256, 256, 128, 64]
        self.layers = nn.ModuleList(Modulated(a, b, style) for a, b in zip(widths, widths[1:]))
        self.color = nn.Conv2d(64, 3, 1)

    def forward(self, z):
        style = self.mapping(z)
        x = self.start.expand(len(z), -1, -1, -1)
        for layer in self.layers:
            x = layer(F.interpolate(x, scale_factor=2, mode="bilinear"), style)
        return self.color(x), style


torch.manual_seed(0)
generator = Generator().cuda()
average = copy.deepcopy(generator).eval().requires_grad_(False)
critic = nn.Sequential(
    nn.Conv2d(3, 64, 3, 1, 1), nn.LeakyReLU(0.2), nn.AvgPool2d(2), nn.Conv2d(64, 128, 3, 1, 1), nn.LeakyReLU(0.2),
    nn.AvgPool2d(2), nn.Conv2d(128, 256, 3, 1, 1), nn.LeakyReLU(0.2), nn.AvgPool2d(2), nn.Flatten(),
    nn.Linear(256 * 64, 1),
).cuda()  # fmt: skip
g_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.0, 0.99))
d_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.0, 0.99))
mean_length = torch.zeros((), device="cuda")
for step in range(4):
    real = torch.randn(32, 3, 64, 64, device="cuda")
    with torch.no_grad():
        fake, _ = generator(torch.randn(32, 256, device="cuda"))
    d_loss = F.softplus(critic(fake)).mean() + F.softplus(-critic(real)).mean()
    d_optimizer.zero_grad()
    d_loss.backward()
    d_optimizer.step()
    if step % 2 == 0:
        real.requires_grad_()
        (gradient,) = torch.autograd.grad(critic(real).sum(), real, create_graph=True)
        d_optimizer.zero_grad()
        (5 * gradient.square().sum((1, 2, 3)).mean()).backward()
        d_optimizer.step()
    fake, _ = generator(torch.randn(32, 256, device="cuda"))
    g_optimizer.zero_grad()
    F.softplus(-critic(fake)).mean().backward()
    g_optimizer.step()
    fake, style = generator(torch.randn(16, 256, device="cuda"))
    noise = torch.randn_like(fake) / 64
    (gradient,) = torch.autograd.grad((fake * noise).sum(), style, create_graph=True)
    lengths = gradient.square().sum(1).sqrt()
    mean_length = mean_length.lerp(lengths.mean().detach(), 0.01)
    g_optimizer.zero_grad()
    (2 * (lengths - mean_length).square().mean()).backward()
    g_optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), generator.parameters()):
            slow.lerp_(fast, 0.002)
        average(torch.randn(64, 256, device="cuda"))
print(d_loss.item())
