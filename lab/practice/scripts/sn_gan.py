"""SN-GAN: spectral norm of both kinds in the discriminator, hinge loss, two discriminator steps for each generator step."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import spectral_norm
from torch.nn.utils.parametrizations import spectral_norm as parametrized_spectral_norm


def generator():
    layers, width = [nn.ConvTranspose2d(128, 1024, 4), nn.BatchNorm2d(1024), nn.ReLU(True)], 1024
    for _ in range(4):
        layers += [nn.ConvTranspose2d(width, width // 2, 4, 2, 1), nn.BatchNorm2d(width // 2), nn.ReLU(True)]
        width //= 2
    return nn.Sequential(*layers, nn.Conv2d(width, 3, 3, padding=1), nn.Tanh())


def discriminator():
    layers, width = [spectral_norm(nn.Conv2d(3, 64, 3, padding=1)), nn.LeakyReLU(0.1)], 64
    for norm in (spectral_norm, parametrized_spectral_norm, spectral_norm, parametrized_spectral_norm):
        layers += [norm(nn.Conv2d(width, width * 2, 4, 2, 1)), nn.LeakyReLU(0.1)]
        width *= 2
    return nn.Sequential(*layers, nn.Flatten(), parametrized_spectral_norm(nn.Linear(width * 16, 1)))


torch.manual_seed(0)
G, D = generator().cuda(), discriminator().cuda()
opt_g = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.0, 0.9))
opt_d = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.0, 0.9))
for step in range(5):
    for _ in range(2):
        real = torch.randn(128, 3, 64, 64, device="cuda")
        noise = torch.randn(128, 128, 1, 1, device="cuda")
        fake = G(noise).detach()
        loss_d = F.relu(1 - D(real)).mean() + F.relu(1 + D(fake)).mean()
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
    loss_g = -D(G(torch.randn(128, 128, 1, 1, device="cuda"))).mean()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
print(loss_d.item(), loss_g.item())
