"""Exact and sparse Gaussian processes: Cholesky of large kernels, triangular solves, multivariate normal log-likelihood."""

import torch
from torch import nn
from torch.distributions import MultivariateNormal

torch.manual_seed(0)
log_length, log_noise = nn.Parameter(torch.zeros(8, device="cuda")), nn.Parameter(torch.tensor(-2.0, device="cuda"))
features = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 8)).cuda()
inducing = nn.Parameter(torch.randn(512, 8, device="cuda"))
optimizer = torch.optim.Adam([log_length, log_noise, inducing, *features.parameters()], lr=1e-2)


def rbf(a, b):
    return torch.exp(-0.5 * torch.cdist(a / log_length.exp(), b / log_length.exp()).square())


for step in range(4):
    x, y = torch.randn(6000, 32, device="cuda"), torch.randn(6000, device="cuda")
    z = features(x)
    kernel = rbf(z, z) + (log_noise.exp() + 1e-3) * torch.eye(6000, device="cuda")
    factor = torch.linalg.cholesky(kernel)
    alpha = torch.cholesky_solve(y[:, None], factor)
    exact = 0.5 * (y @ alpha).squeeze() + factor.diagonal().log().sum()
    kzz = rbf(inducing, inducing) + 1e-3 * torch.eye(512, device="cuda")
    a = torch.linalg.solve_triangular(torch.linalg.cholesky(kzz), rbf(inducing, z), upper=False)
    sparse = MultivariateNormal(torch.zeros(512, device="cuda"), covariance_matrix=kzz).log_prob(a[:, :4].T).sum()
    loss = exact / 6000 - 1e-3 * sparse + a.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
