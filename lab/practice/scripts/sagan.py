"""A conditional SN-GAN with self-attention, projection discriminator, conditional batch norm and orthogonal regularization."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import spectral_norm as SN


class ConditionalBN(nn.Module):
    def __init__(self, c, classes):
        super().__init__()
        self.bn, self.embed = nn.BatchNorm2d(c, affine=False), nn.Embedding(classes, 2 * c)

    def forward(self, x, y):
        gamma, beta = self.embed(y).chunk(2, 1)
        return self.bn(x) * (1 + gamma[:, :, None, None]) + beta[:, :, None, None]


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.q, self.k, self.v, self.o = (
            SN(nn.Conv2d(c, c // 8, 1)),
            SN(nn.Conv2d(c, c // 8, 1)),
            SN(nn.Conv2d(c, c // 2, 1)),
            SN(nn.Conv2d(c // 2, c, 1)),
        )
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        n, c, h, w = x.shape
        q, k, v = self.q(x).flatten(2), F.max_pool2d(self.k(x), 2).flatten(2), F.max_pool2d(self.v(x), 2).flatten(2)
        a = torch.bmm(q.transpose(1, 2), k).softmax(-1)
        return x + self.gamma * self.o(torch.bmm(v, a.transpose(1, 2)).view(n, c // 2, h, w))


class GBlock(nn.Module):
    def __init__(self, i, o, classes):
        super().__init__()
        self.b1, self.c1, self.b2, self.c2, self.s = (
            ConditionalBN(i, classes),
            SN(nn.Conv2d(i, o, 3, padding=1)),
            ConditionalBN(o, classes),
            SN(nn.Conv2d(o, o, 3, padding=1)),
            SN(nn.Conv2d(i, o, 1)),
        )

    def forward(self, x, y):
        h = F.interpolate(F.relu(self.b1(x, y)), scale_factor=2)
        return self.c2(F.relu(self.b2(self.c1(h), y))) + F.interpolate(self.s(x), scale_factor=2)


class G(nn.Module):
    def __init__(self, w=64, classes=100):
        super().__init__()
        self.fc = SN(nn.Linear(128, 16 * 16 * w))
        self.blocks = nn.ModuleList(
            [
                GBlock(16 * w, 8 * w, classes),
                GBlock(8 * w, 4 * w, classes),
                GBlock(4 * w, 2 * w, classes),
                GBlock(2 * w, w, classes),
            ]
        )
        self.attention, self.out = Attention(4 * w), SN(nn.Conv2d(w, 3, 3, padding=1))

    def forward(self, z, y):
        x = self.fc(z).view(z.shape[0], -1, 4, 4)
        for i, block in enumerate(self.blocks):
            x = block(x, y)
            if i == 1:
                x = self.attention(x)
        return torch.tanh(self.out(F.relu(x)))


class D(nn.Module):
    def __init__(self, w=64, classes=100):
        super().__init__()
        self.convs = nn.ModuleList(
            SN(nn.Conv2d(a, b, 4, 2, 1)) for a, b in ((3, w), (w, 2 * w), (2 * w, 4 * w), (4 * w, 8 * w))
        )
        self.attention, self.fc, self.embed = (
            Attention(2 * w),
            SN(nn.Linear(8 * w, 1)),
            SN(nn.Embedding(classes, 8 * w)),
        )

    def forward(self, x, y):
        for i, conv in enumerate(self.convs):
            x = F.leaky_relu(conv(x), 0.1, inplace=True)
            if i == 1:
                x = self.attention(x)
        h = x.sum((2, 3))
        return self.fc(h) + (self.embed(y) * h).sum(1, keepdim=True)


torch.manual_seed(0)
g, d = G().cuda(), D().cuda()
og, od = (
    torch.optim.Adam(g.parameters(), 1e-4, betas=(0.0, 0.9)),
    torch.optim.Adam(d.parameters(), 4e-4, betas=(0.0, 0.9)),
)
for step in range(4):
    real, y = torch.randn(128, 3, 64, 64, device="cuda"), torch.randint(0, 100, (128,), device="cuda")
    with torch.no_grad():
        fake = g(torch.randn(128, 128, device="cuda"), y)
    loss_d = F.relu(1 - d(real, y)).mean() + F.relu(1 + d(fake, y)).mean()
    od.zero_grad()
    loss_d.backward()
    od.step()
    d.requires_grad_(False)
    loss_g = -d(g(torch.randn(128, 128, device="cuda"), y), y).mean()
    w = g.fc.weight_orig
    loss_g = loss_g + 1e-4 * ((w.T @ w) * (1 - torch.eye(128, device="cuda"))).square().sum()
    og.zero_grad()
    loss_g.backward()
    og.step()
    d.requires_grad_(True)
print(loss_d.item(), loss_g.item())
