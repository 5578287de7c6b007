"""Quantization-aware training by hand: fake quantization with learned scales (LSQ), per channel for weights."""

import torch
from torch import nn
from torchvision.models import mobilenet_v3_large

torch.manual_seed(0)


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, low, high):
        ctx.save_for_backward(x, scale)
        ctx.bounds = low, high
        return (x / scale).round().clamp(low, high) * scale

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        low, high = ctx.bounds
        ratio = x / scale
        inside = (ratio >= low) & (ratio <= high)
        at_scale = torch.where(inside, ratio.round() - ratio, ratio.clamp(low, high).round()) * g
        dims = [d for d in range(x.dim()) if scale.shape[d] == 1] if scale.dim() else list(range(x.dim()))
        return g * inside, at_scale.sum(dims, keepdim=bool(scale.dim())), None, None


class Quantized(nn.Conv2d):
    def forward(self, x):
        w = Round.apply(self.weight, self.weight_scale, -128, 127)
        return self._conv_forward(Round.apply(x, self.input_scale, -128, 127), w, self.bias)


net = mobilenet_v3_large(num_classes=100).cuda()
for module in net.modules():
    if type(module) is nn.Conv2d:
        module.__class__ = Quantized
        module.weight_scale = nn.Parameter(module.weight.detach().abs().amax((1, 2, 3), keepdim=True) / 127)
        module.input_scale = nn.Parameter(torch.tensor(0.05, device="cuda"))
optimizer = torch.optim.Adamax(net.parameters(), lr=1e-3)
for step in range(3):
    x, y = torch.randn(32, 3, 192, 192, device="cuda"), torch.randint(0, 100, (32,), device="cuda")
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
net.eval()
with torch.no_grad():
    print(net(torch.randn(128, 3, 224, 224, device="cuda")).argmax(-1).float().mean().item())
