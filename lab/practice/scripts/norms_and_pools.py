"""Group, instance, local response, RMS and synchronized norms; every pooling; every activation."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1),
    nn.GroupNorm(16, 64),
    nn.SiLU(),
    nn.Conv2d(64, 64, 3, padding=1, groups=64),
    nn.InstanceNorm2d(64, affine=True, track_running_stats=True),
    nn.Mish(),
    nn.LPPool2d(2, 2),
    nn.Conv2d(64, 128, 3, padding=1, padding_mode="reflect"),
    nn.LocalResponseNorm(5),
    nn.Hardswish(),
    nn.FractionalMaxPool2d(2, output_ratio=0.7),
    nn.Conv2d(128, 128, 3, dilation=2),
    nn.BatchNorm2d(128),
    nn.PReLU(128),
    nn.AdaptiveMaxPool2d(24),
    nn.Dropout2d(0.1),
    nn.Conv2d(128, 256, 1),
    nn.GLU(1),
    nn.CELU(),
    nn.ZeroPad2d(1),
    nn.AvgPool2d(3, 2, ceil_mode=True),
    nn.Softplus(),
    nn.RReLU(),
    nn.Flatten(2),
    nn.RMSNorm(169),
    nn.AdaptiveAvgPool1d(32),
    nn.Flatten(),
    nn.AlphaDropout(0.1),
    nn.Linear(4096, 100),
).cuda()
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
for step in range(5):
    x, y = torch.randn(64, 3, 96, 96, device="cuda"), torch.randint(0, 100, (64,), device="cuda")
    logits = model(x)
    pooled, where = F.max_pool2d(x, 2, return_indices=True)
    unpooled = F.max_unpool2d(pooled, where, 2)
    loss = (
        F.multi_margin_loss(logits, y)
        + F.gumbel_softmax(logits, hard=True).mean()
        + unpooled.mean()
        + F.logsigmoid(logits).mean()
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
