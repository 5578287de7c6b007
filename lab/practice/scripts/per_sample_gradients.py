"""Per-sample gradients with vmap(grad(functional_call)), clipped one by one (DP-SGD)."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1),
    nn.GroupNorm(8, 64),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(64, 128, 3, padding=1),
    nn.GroupNorm(8, 128),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(128, 256, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Linear(4096, 100),
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def sample_loss(parameters, buffers, image, label):
    output = functional_call(model, (parameters, buffers), (image.unsqueeze(0),))
    return F.cross_entropy(output, label.unsqueeze(0))


per_sample = vmap(grad(sample_loss), in_dims=(None, None, 0, 0))
for step in range(5):
    images = torch.randn(256, 3, 32, 32, device="cuda")
    labels = torch.randint(0, 100, (256,), device="cuda")
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    buffers = dict(model.named_buffers())
    gradients = per_sample(parameters, buffers, images, labels)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
    scale = (1.0 / (norms + 1e-6)).clamp(max=1.0)
    for name, p in model.named_parameters():
        p.grad = torch.einsum("n,n...->...", scale, gradients[name]) / 256
        p.grad += 0.01 * torch.randn_like(p.grad)
    optimizer.step()
    optimizer.zero_grad()
