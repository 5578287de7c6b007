"""Forward-mode AD: training with forward gradients (jvp along random directions) and a dual-number penalty."""

import torch
import torch.autograd.forward_ad as fwAD
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, jvp

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2048, 8192), nn.Tanh(), nn.Linear(8192, 8192), nn.Tanh(), nn.Linear(8192, 100)).cuda()
parameters = dict(model.named_parameters())
optimizer = torch.optim.SGD(parameters.values(), lr=1e-4)
for step in range(6):
    x, y = torch.randn(8192, 2048, device="cuda"), torch.randint(0, 100, (8192,), device="cuda")
    tangents = {k: torch.randn_like(v) for k, v in parameters.items()}
    detached = {k: v.detach() for k, v in parameters.items()}
    loss, slope = jvp(lambda p: F.cross_entropy(functional_call(model, p, (x,)), y), (detached,), (tangents,))
    for name, p in parameters.items():
        p.grad = slope * tangents[name]
    optimizer.step()
    optimizer.zero_grad()
    with fwAD.dual_level():
        dual = fwAD.make_dual(x, torch.randn_like(x))
        sensitivity = fwAD.unpack_dual(model(dual)).tangent.square().mean()
    sensitivity.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
