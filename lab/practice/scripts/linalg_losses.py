"""Losses from linear algebra: SVD, QR, Cholesky, log-determinant, solve, pinv, matrix_exp."""

import torch
from torch import nn

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
generator = nn.Parameter(0.01 * torch.randn(256, 256, device="cuda"))
optimizer = torch.optim.Adam([*encoder.parameters(), generator], lr=1e-4)
eye = torch.eye(256, device="cuda")
for step in range(5):
    x = torch.randn(65536, 512, device="cuda")
    z = encoder(x)
    covariance = z.T @ z / z.shape[0] + 0.1 * eye
    factor = torch.linalg.cholesky(covariance)
    whitened = torch.linalg.solve_triangular(factor, z.T, upper=False).T
    spectrum = torch.linalg.svdvals(z.view(64, 1024, 256)[:4])
    u, s, vh = torch.linalg.svd(covariance, full_matrices=False)
    q, r = torch.linalg.qr(z.view(64, 1024, 256)[:8])
    turned = whitened @ torch.matrix_exp(generator - generator.T)
    solved = torch.linalg.solve(covariance, eye)
    small = z.view(1024, 64, 256)[:, :32, :32]
    batched = torch.linalg.inv(small @ small.mT + eye[:32, :32])
    loss = (
        torch.logdet(covariance)
        + spectrum.log1p().mean()
        + (s.max() / s.min()).log()
        + r.abs().mean()
        + turned.abs().mean()
        + solved.diagonal().mean()
        + batched.diagonal(dim1=1, dim2=2).mean()
        + torch.linalg.matrix_norm(covariance, "nuc") / 256
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
