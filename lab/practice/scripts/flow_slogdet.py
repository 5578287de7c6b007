"""A Glow-like flow: invertible 1x1 convolutions (slogdet, LU), affine couplings, multi-scale squeezes, checkpointed steps."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Step(nn.Module):
    def __init__(self, c, lu):
        super().__init__()
        w = torch.linalg.qr(torch.randn(c, c))[0]
        self.lu = lu
        if lu:
            p, l, u = torch.linalg.lu(w)
            self.register_buffer("p", p)
            self.l, self.u, self.s = nn.Parameter(l), nn.Parameter(u.triu(1)), nn.Parameter(u.diagonal().abs().log())
        else:
            self.w = nn.Parameter(w)
        self.scale, self.shift = nn.Parameter(torch.zeros(1, c, 1, 1)), nn.Parameter(torch.zeros(1, c, 1, 1))
        self.net = nn.Sequential(
            nn.Conv2d(c // 2, 512, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(512, 512, 1),
            nn.ReLU(),
            nn.Conv2d(512, c, 3, padding=1),
        )

    def forward(self, x):
        n, c, h, w = x.shape
        x = (x + self.shift) * self.scale.exp()
        logdet = self.scale.sum() * h * w
        if self.lu:
            eye = torch.eye(c, device=x.device)
            weight = self.p @ (self.l.tril(-1) + eye) @ (self.u.triu(1) + torch.diag(self.s.exp()))
            logdet = logdet + self.s.sum() * h * w
        else:
            weight = self.w
            logdet = logdet + torch.linalg.slogdet(weight)[1] * h * w
        x = F.conv2d(x, weight[:, :, None, None])
        a, b = x.chunk(2, 1)
        log_s, t = self.net(a).chunk(2, 1)
        s = torch.sigmoid(log_s + 2)
        return torch.cat([a, (b + t) * s], 1), logdet + s.log().sum((1, 2, 3))


torch.manual_seed(0)
scales = nn.ModuleList(nn.ModuleList(Step(c, i % 2 == 0) for i in range(6)) for c in (12, 24, 48)).cuda()
optimizer = torch.optim.Adamax(scales.parameters(), lr=1e-3)
for step in range(4):
    x = torch.rand(32, 3, 64, 64, device="cuda")
    total, log_p = 0.0, 0.0
    for i, steps in enumerate(scales):
        x = F.pixel_unshuffle(x, 2)
        for s in steps:
            x, logdet = checkpoint(s, x, use_reentrant=False) if i == 0 else s(x)
            total = total + logdet
        if i < 2:
            x, z = x.chunk(2, 1)
            log_p = log_p + (-0.5 * z.square() - 0.919).sum((1, 2, 3))
    log_p = log_p + (-0.5 * x.square() - 0.919).sum((1, 2, 3))
    loss = -(log_p + total).mean() / (3 * 64 * 64)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
