"""DP-SGD by hand: a gradient for each sample by vmap in chunks, clipped, noise added (torch.func)."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad_and_value, vmap


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.Mish(), nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 3, padding=1), nn.GroupNorm(8, 128), nn.Mish(), nn.MaxPool2d(2),
            nn.Conv2d(128, 256, 3, padding=1), nn.GroupNorm(8, 256), nn.Mish(), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Dropout(0.1), nn.Linear(256, 10),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x)


torch.manual_seed(0)
model = Net().cuda()
parameters = {name: p.detach() for name, p in model.named_parameters()}
momentum = {name: torch.zeros_like(p) for name, p in parameters.items()}


def loss_of_one(parameters, image, label):
    return F.cross_entropy(functional_call(model, parameters, (image.unsqueeze(0),)), label.unsqueeze(0))


per_sample = vmap(grad_and_value(loss_of_one), in_dims=(None, 0, 0), randomness="different", chunk_size=64)
for step in range(4):
    images = torch.randn(256, 3, 32, 32, device="cuda")
    labels = torch.randint(0, 10, (256,), device="cuda")
    gradients, losses = per_sample(parameters, images, labels)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
    factor = (1.0 / (norms + 1e-6)).clamp(max=1)
    for name, gradient in gradients.items():
        mean = torch.einsum("n,n...->...", factor, gradient) / 256
        mean += torch.randn_like(mean) * 0.8 / 256
        momentum[name].mul_(0.9).add_(mean)
        parameters[name] = parameters[name] - 0.1 * momentum[name]
print(losses.mean().item())
