"""Swin under fp16 autocast with a GradScaler, accumulation, clipping, OneCycleLR and pinned batches."""

import torch
import torchvision
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 224, 224, generator=generator), index % 1000


if __name__ == "__main__":
    torch.manual_seed(0)
    loader = DataLoader(Images(), batch_size=32, shuffle=True, num_workers=2, pin_memory=True, drop_last=True)
    model = torchvision.models.swin_t().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=100)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    for index, (images, labels) in enumerate(loader):
        images, labels = images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(images), labels) / 2
        scaler.scale(loss).backward()
        if index % 2 == 1:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            optimizer.zero_grad()
        if index == 9:
            break
    print(loss.item())
