"""SN-GAN with residual blocks: spectral norm by parametrization, a projection discriminator, two critics' steps, fp16."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm as sn


class Down(nn.Module):
    def __init__(self, a, b, pool=True):
        super().__init__()
        self.one, self.two = sn(nn.Conv2d(a, b, 3, padding=1)), sn(nn.Conv2d(b, b, 3, padding=1))
        self.skip, self.pool = sn(nn.Conv2d(a, b, 1)), pool

    def forward(self, x):
        y = self.two(F.relu(self.one(F.relu(x))))
        z = self.skip(x)
        return F.avg_pool2d(y, 2) + F.avg_pool2d(z, 2) if self.pool else y + z


class Critic(nn.Module):
    def __init__(self, width=96, classes=10):
        super().__init__()
        self.blocks = nn.Sequential(
            Down(3, width), Down(width, 2 * width), Down(2 * width, 4 * width), Down(4 * width, 4 * width, False)
        )
        self.out, self.embedding = sn(nn.Linear(4 * width, 1)), sn(nn.Embedding(classes, 4 * width))

    def forward(self, x, labels):
        features = F.relu(self.blocks(x)).sum((2, 3))
        return self.out(features).squeeze(1) + (self.embedding(labels) * features).sum(1)


class Up(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(a), nn.BatchNorm2d(b)
        self.one, self.two, self.skip = nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1), nn.Conv2d(a, b, 1)

    def forward(self, x):
        big = nn.Upsample(scale_factor=2)
        return self.two(F.relu(self.norm2(self.one(big(F.relu(self.norm1(x))))))) + self.skip(big(x))


torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(138, 256 * 16), nn.Unflatten(1, (256, 4, 4)), Up(256, 256), Up(256, 256), Up(256, 128),
                          Up(128, 64), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 3, 3, padding=1), nn.Tanh()).cuda()  # fmt: skip
critic = Critic().cuda()
g_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.0, 0.9))
d_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.0, 0.9))
g_scaler, d_scaler = (torch.amp.GradScaler("cuda", init_scale=128.0) for _ in range(2))


def noise(count):
    labels = torch.randint(0, 10, (count,), device="cuda")
    return torch.cat([torch.randn(count, 128, device="cuda"), F.one_hot(labels, 10)], 1), labels


for step in range(6):
    real, labels = torch.randn(64, 3, 64, 64, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        with torch.no_grad():
            z, wanted = noise(64)
            fake = generator(z)
        d_loss = F.relu(1 - critic(real, labels)).mean() + F.relu(1 + critic(fake, wanted)).mean()
    d_optimizer.zero_grad()
    d_scaler.scale(d_loss).backward()
    d_scaler.step(d_optimizer)
    d_scaler.update()
    if step % 2:
        with torch.autocast("cuda", dtype=torch.float16):
            z, wanted = noise(128)
            g_loss = -critic(generator(z), wanted).mean()
        g_optimizer.zero_grad()
        g_scaler.scale(g_loss).backward()
        g_scaler.step(g_optimizer)
        g_scaler.update()
print(d_loss.item())
