"""Metric learning: cdist, triplets mined with masks and topk, supervised contrastive loss, SDPA-free einsums."""

import torch
import torch.nn.functional as F
import torchvision
from torch import nn

torch.manual_seed(0)
model = torchvision.models.resnet18()
model.fc = nn.Linear(512, 256)
model.cuda()
centers = nn.Parameter(torch.randn(2000, 256, device="cuda"))
optimizer = torch.optim.AdamW([*model.parameters(), centers], lr=1e-4)
for step in range(5):
    images, labels = torch.randn(256, 3, 112, 112, device="cuda"), torch.randint(0, 2000, (256,), device="cuda")
    z = F.normalize(model(images))
    distance = torch.cdist(z, z)
    same = labels[:, None] == labels[None, :]
    hardest = distance.masked_fill(~same, 0).max(1).values
    nearest = distance.masked_fill(same, 1e4).topk(4, largest=False).values.mean(1)
    triplet = F.relu(hardest - nearest + 0.2).mean()
    to_centers = torch.cdist(z, centers, p=2.0, compute_mode="use_mm_for_euclid_dist").gather(1, labels[:, None]).mean()
    manhattan = torch.cdist(z, centers[:512], p=1).min(1).values.mean()
    similarity = torch.einsum("id,jd->ij", z, z) / 0.1
    contrast = -(F.log_softmax(similarity, 1) * same.float()).sum(1).div(same.sum(1)).mean()
    loss = triplet + to_centers + 0.01 * manhattan + contrast
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
