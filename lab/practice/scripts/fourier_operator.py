"""A Fourier neural operator: rfft2, complex weights, einsum, irfft2."""

import torch
import torch.nn.functional as F
from torch import nn


class SpectralConv(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        self.w1 = nn.Parameter(torch.randn(width, width, modes, modes, dtype=torch.cfloat) / width**2)
        self.w2 = nn.Parameter(torch.randn(width, width, modes, modes, dtype=torch.cfloat) / width**2)

    def forward(self, x):
        m = self.modes
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros_like(spectrum)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], self.w1)
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :m], self.w2)
        return torch.fft.irfft2(out, s=x.shape[-2:])


class FNO(nn.Module):
    def __init__(self, width=48, modes=24):
        super().__init__()
        self.lift, self.project = (
            nn.Conv2d(3, width, 1),
            nn.Sequential(nn.Conv2d(width, 128, 1), nn.GELU(), nn.Conv2d(128, 1, 1)),
        )
        self.spectral = nn.ModuleList(SpectralConv(width, modes) for _ in range(4))
        self.local = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, x):
        x = self.lift(x)
        for spectral, local in zip(self.spectral, self.local):
            x = F.gelu(spectral(x) + local(x))
        return self.project(x)


torch.manual_seed(0)
model = FNO().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
for step in range(5):
    x, y = torch.randn(16, 3, 240, 240, device="cuda"), torch.randn(16, 1, 240, 240, device="cuda")
    out = model(x)
    loss = ((out - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
