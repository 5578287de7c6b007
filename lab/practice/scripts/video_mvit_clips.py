"""A video transformer and a 3-D ResNet on clips of two lengths, mixup, gradients accumulated by their mean."""

import torch
from torchvision.models.video import mvit_v2_s, r2plus1d_18

torch.manual_seed(0)
for net, frames in ((mvit_v2_s(num_classes=40), (16, 16)), (r2plus1d_18(num_classes=40), (8, 12))):
    net.cuda().train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    for step in range(3):
        for length in frames:
            clip = torch.randn(2, 3, length, 224, 224, device="cuda")
            label = torch.nn.functional.one_hot(torch.randint(0, 40, (2,), device="cuda"), 40).float()
            share = torch.distributions.Beta(0.8, 0.8).sample().item()
            order = torch.randperm(2, device="cuda")
            clip, label = clip.lerp(clip[order], 1 - share), label.lerp(label[order], 1 - share)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(net(clip), label) / len(frames)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    del net, optimizer
print(loss.item())
