"""A VQ-GAN: codebook with a straight-through gradient, a perceptual loss, an adaptive weight from two last-layer gradients."""

import torch
from torch import nn
from torchvision.models import vgg16

torch.manual_seed(0)


def block(i, o):
    return nn.Sequential(nn.GroupNorm(32, i), nn.SiLU(), nn.Conv2d(i, o, 3, padding=1))


encoder = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), block(64, 128), nn.AvgPool2d(2), block(128, 128), nn.AvgPool2d(2), block(128, 256), nn.AvgPool2d(2),
    block(256, 128),
).cuda()  # fmt: skip
decoder = nn.Sequential(
    block(128, 256), nn.Upsample(scale_factor=2), block(256, 128), nn.Upsample(scale_factor=2), block(128, 128),
    nn.Upsample(scale_factor=2), block(128, 64), nn.Conv2d(64, 3, 3, padding=1),
).cuda()  # fmt: skip
codes = nn.Embedding(1024, 128).cuda()
critic = nn.Sequential(
    nn.Conv2d(3, 64, 4, 2, 1),
    nn.LeakyReLU(0.2),
    nn.Conv2d(64, 128, 4, 2, 1),
    nn.BatchNorm2d(128),
    nn.LeakyReLU(0.2),
    nn.Conv2d(128, 1, 4, 1, 1),
).cuda()
features = vgg16(weights=None).features[:16].cuda().eval().requires_grad_(False)
first = torch.optim.Adam([*encoder.parameters(), *decoder.parameters(), *codes.parameters()], 1e-4, betas=(0.5, 0.9))
second = torch.optim.Adam(critic.parameters(), 1e-4, betas=(0.5, 0.9))
for step in range(4):
    x = torch.rand(8, 3, 128, 128, device="cuda") * 2 - 1
    z = encoder(x)
    flat = z.permute(0, 2, 3, 1).reshape(-1, 128)
    nearest = torch.cdist(flat, codes.weight).argmin(1)
    quantized = codes(nearest).view(8, 16, 16, 128).permute(0, 3, 1, 2)
    commitment = (quantized.detach() - z).square().mean() + 0.25 * (quantized - z.detach()).square().mean()
    reconstruction = decoder(z + (quantized - z).detach())
    likeness = (reconstruction - x).abs().mean() + (features(reconstruction) - features(x)).square().mean()
    adversarial = -critic(reconstruction).mean()
    last = decoder[-1].weight
    a = torch.autograd.grad(likeness, last, retain_graph=True)[0].norm()
    b = torch.autograd.grad(adversarial, last, retain_graph=True)[0].norm()
    loss = likeness + commitment + (a / (b + 1e-4)).clamp(0, 1e4).detach() * adversarial
    first.zero_grad()
    loss.backward()
    first.step()
    second.zero_grad()
    (
        nn.functional.relu(1 - critic(x)).mean() + nn.functional.relu(1 + critic(reconstruction.detach())).mean()
    ).backward()
    second.step()
print(loss.item())
