"""A complex-valued mask network on spectrograms: stft, complex linear layers, istft, multi-resolution spectral loss."""

import torch
import torch.nn.functional as F
from torch import nn


class ComplexLinear(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i, dtype=torch.complex64) / i**0.5)

    def forward(self, x):
        return x @ self.weight.T


class ComplexReLU(nn.Module):
    def forward(self, x):
        return torch.complex(F.relu(x.real), F.relu(x.imag))


def spectral_loss(a, b):
    total = 0.0
    for size in (512, 1024, 2048):
        window = torch.hann_window(size, device=a.device)
        sa = torch.stft(a, size, size // 4, window=window, return_complex=True).abs().clamp(min=1e-5)
        sb = torch.stft(b, size, size // 4, window=window, return_complex=True).abs().clamp(min=1e-5)
        total = total + (sa - sb).norm() / sb.norm() + F.l1_loss(sa.log(), sb.log())
    return total


torch.manual_seed(0)
model = nn.Sequential(
    ComplexLinear(513, 1024), ComplexReLU(), ComplexLinear(1024, 1024), ComplexReLU(), ComplexLinear(1024, 513)
).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
window = torch.hann_window(1024, device="cuda")
for step in range(5):
    clean = torch.randn(48, 64000, device="cuda")
    noisy = clean + 0.1 * torch.randn_like(clean)
    spectrum = torch.stft(noisy, 1024, 256, window=window, return_complex=True)
    mask = model(spectrum.transpose(1, 2)).transpose(1, 2)
    output = torch.istft(spectrum * mask, 1024, 256, window=window, length=64000)
    phase = torch.angle(mask).cos().mean()
    loss = spectral_loss(output, clean) + 0.01 * phase
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
