"""Hessian-free optimization: conjugate gradients with Hessian-vector products, and a Fisher-weighted penalty (EWC)."""

import torch
import torch.nn.functional as F
import torchvision
from torch.nn.utils import parameters_to_vector, vector_to_parameters

torch.manual_seed(0)
model = torchvision.models.resnet18(num_classes=10).cuda().eval()
params = list(model.parameters())
optimizer = torch.optim.SGD(params, lr=0.01)
fisher = torch.zeros_like(parameters_to_vector(params))
for step in range(4):
    x, y = torch.randn(64, 3, 96, 96, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
    loss = F.cross_entropy(model(x), y)
    gradient = parameters_to_vector(torch.autograd.grad(loss, params, create_graph=True))

    def hvp(v):
        return (
            torch.cat(
                [o.contiguous().view(-1) for o in torch.autograd.grad((gradient * v).sum(), params, retain_graph=True)]
            )
            + 0.1 * v
        )

    b = -gradient.detach()
    d, r = torch.zeros_like(b), b.clone()
    p, rr = r.clone(), r.dot(r)
    for _ in range(4):
        q = hvp(p)
        alpha = rr / p.dot(q)
        d += alpha * p
        r -= alpha * q
        new = r.dot(r)
        p = r + (new / rr) * p
        rr = new
    fisher.mul_(0.9).add_(gradient.detach().square(), alpha=0.1)
    with torch.no_grad():
        vector_to_parameters(parameters_to_vector(params) + 0.01 * d / (1 + fisher), params)
    del gradient, loss
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
