"""A physics-informed network: the Laplacian by forward over reverse (jvp of grad), mapped over the points."""

import torch
from torch import nn
from torch.func import functional_call, grad, jvp, vmap

torch.manual_seed(0)
network = nn.Sequential(nn.Linear(3, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(),
                        nn.Linear(256, 1)).cuda()  # fmt: skip
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)


def laplacian(parameters, point):
    def field(x):
        return functional_call(network, parameters, (x,)).squeeze()

    basis = torch.eye(3, device=point.device)
    second = [jvp(grad(field), (point,), (direction,))[1] @ direction for direction in basis]
    return sum(second)


residual = vmap(laplacian, in_dims=(None, 0))
for step in range(5):
    points = torch.rand(8192, 3, device="cuda")
    edge = torch.rand(2048, 3, device="cuda").round()
    source = points.square().sum(1)
    loss = (residual(dict(network.named_parameters()), points) - source).square().mean()
    loss = loss + 10 * network(edge).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
