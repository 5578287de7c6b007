"""A physics-informed network: Laplacians from torch.func.hessian under vmap, and a full Hessian of a small loss."""

import torch
from torch import nn
from torch.func import functional_call, hessian, jacrev, vmap

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(3, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1)
).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def u(parameters, point):
    return functional_call(model, parameters, (point,)).squeeze(-1)


def residual(parameters, point):
    second = hessian(u, argnums=1)(parameters, point)
    first = jacrev(u, argnums=1)(parameters, point)
    return second.diagonal().sum() + first.sum() - torch.sin(point).prod()


for step in range(5):
    points = torch.rand(16384, 3, device="cuda")
    parameters = dict(model.named_parameters())
    loss = vmap(residual, in_dims=(None, 0))(parameters, points).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

weights = torch.randn(3000, device="cuda")
data = torch.randn(4096, 3000, device="cuda")
curvature = hessian(lambda w: torch.log1p(torch.exp(-(data @ w))).mean())(weights)
print(loss.item(), curvature.shape)
