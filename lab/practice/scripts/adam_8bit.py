"""8-bit AdamW and 8-bit Lion of bitsandbytes on a ViT: matrices in one, the rest in the other."""

import bitsandbytes as bnb
import torch
import torchvision

torch.manual_seed(0)
model = torchvision.models.vit_l_16().cuda()
matrices = [p for p in model.parameters() if p.ndim >= 2]
others = [p for p in model.parameters() if p.ndim < 2]
optimizers = [bnb.optim.AdamW8bit(matrices, lr=1e-4), bnb.optim.Lion8bit(others, lr=1e-5)]
for step in range(5):
    images = torch.randn(24, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (24,), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
print(loss.item())
