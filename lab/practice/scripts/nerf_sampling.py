"""A NeRF: positional encoding, cumprod compositing, hierarchical sampling with searchsorted, rendering in chunks."""

import torch
import torch.nn.functional as F
from torch import nn


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Linear(63, 256)] + [nn.Linear(256 + (63 if i == 4 else 0), 256) for i in range(1, 8)]
        )
        self.density, self.feature, self.color = (
            nn.Linear(256, 1),
            nn.Linear(256, 256),
            nn.Sequential(nn.Linear(283, 128), nn.ReLU(), nn.Linear(128, 3)),
        )

    def forward(self, x, d):
        x, d = encode(x, 10), encode(d, 4)
        h = x
        for i, layer in enumerate(self.layers):
            h = F.relu(layer(torch.cat([x, h], -1) if i == 4 else h))
        return torch.sigmoid(self.color(torch.cat([self.feature(h), d], -1))), self.density(h).squeeze(-1)


def encode(x, levels):
    return torch.cat([x] + [f(2.0**i * x) for i in range(levels) for f in (torch.sin, torch.cos)], -1)


def composite(rgb, sigma, z):
    delta = torch.cat([z[:, 1:] - z[:, :-1], torch.full_like(z[:, :1], 1e10)], -1)
    alpha = 1 - torch.exp(-F.relu(sigma) * delta)
    transmittance = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
    weights = alpha * transmittance
    return (weights[..., None] * rgb).sum(1), weights


def resample(z, weights, count):
    pdf = (weights + 1e-5) / (weights + 1e-5).sum(-1, keepdim=True)
    cdf = torch.cat([torch.zeros_like(pdf[:, :1]), pdf.cumsum(-1)], -1)
    u = torch.rand(z.shape[0], count, device=z.device)
    index = torch.searchsorted(cdf, u.contiguous(), right=True)
    low, high = (index - 1).clamp(min=0), index.clamp(max=cdf.shape[-1] - 1)
    both = torch.stack([low, high], -1)
    shape = [both.shape[0], both.shape[1], cdf.shape[-1]]
    c = torch.gather(cdf.unsqueeze(1).expand(shape), 2, both)
    b = torch.gather(F.pad(z, (0, 1), mode="replicate").unsqueeze(1).expand(shape), 2, both)
    width = c[..., 1] - c[..., 0]
    t = (u - c[..., 0]) / torch.where(width < 1e-5, torch.ones_like(width), width)
    return (b[..., 0] + t * (b[..., 1] - b[..., 0])).detach()


def render(coarse, fine, origins, directions):
    z = torch.linspace(2, 6, 64, device=origins.device).expand(origins.shape[0], 64)
    z = z + torch.rand_like(z) * 0.05
    points = origins[:, None] + directions[:, None] * z[..., None]
    rgb, sigma = coarse(points, directions[:, None].expand_as(points))
    first, weights = composite(rgb, sigma, z)
    z = torch.sort(torch.cat([z, resample(z, weights.detach(), 128)], -1), -1).values
    points = origins[:, None] + directions[:, None] * z[..., None]
    rgb, sigma = fine(points, directions[:, None].expand_as(points))
    return first, composite(rgb, sigma, z)[0]


torch.manual_seed(0)
coarse, fine = Field().cuda(), Field().cuda()
optimizer = torch.optim.Adam([*coarse.parameters(), *fine.parameters()], lr=5e-4)
for step in range(4):
    origins, directions, target = (torch.randn(1024, 3, device="cuda") for _ in range(3))
    first, second = render(coarse, fine, origins, F.normalize(directions, dim=-1))
    loss = F.mse_loss(first, target) + F.mse_loss(second, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    rays = torch.randn(10000, 3, device="cuda")
    image = torch.cat([render(coarse, fine, o, F.normalize(o, dim=-1))[1] for o in rays.split(4096)])
print(loss.item())
