"""Multi-task learning with PCGrad: gradients of each task with retain_graph, projected on conflict, summed."""

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models.segmentation import fcn_resnet50

torch.manual_seed(0)
trunk = fcn_resnet50(weights=None, weights_backbone=None, num_classes=64).cuda()
heads = nn.ModuleList([nn.Conv2d(64, 13, 1), nn.Conv2d(64, 1, 1), nn.Conv2d(64, 3, 1)]).cuda()
shared = list(trunk.parameters())
optimizer = torch.optim.Adam([*shared, *heads.parameters()], lr=1e-4)
log_variance = torch.zeros(3, device="cuda")
for step in range(4):
    images = torch.randn(8, 3, 256, 256, device="cuda")
    features = trunk(images)["out"]
    losses = [
        F.cross_entropy(heads[0](features), torch.randint(0, 13, (8, 256, 256), device="cuda")),
        F.l1_loss(heads[1](features), torch.randn(8, 1, 256, 256, device="cuda")),
        1 - F.cosine_similarity(heads[2](features), torch.randn(8, 3, 256, 256, device="cuda")).mean(),
    ]
    optimizer.zero_grad()
    flat = []
    for i, loss in enumerate(losses):
        gradients = torch.autograd.grad(loss, [*shared, *heads[i].parameters()], retain_graph=i < 2, allow_unused=True)
        for p, g in zip(heads[i].parameters(), gradients[len(shared) :]):
            p.grad = g
        flat.append(
            torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten() for p, g in zip(shared, gradients)])
        )
    projected = []
    for i, g in enumerate(flat):
        g = g.clone()
        for j, other in enumerate(flat):
            if i != j:
                g -= torch.clamp(g @ other, max=0) / (other.norm() ** 2 + 1e-8) * other
        projected.append(g)
    total, offset = torch.stack(projected).sum(0), 0
    for p in shared:
        p.grad = total[offset : offset + p.numel()].view_as(p)
        offset += p.numel()
    optimizer.step()
