"""Train, save a checkpoint, free everything, load it with map_location and go on; one group is unfrozen later."""

import gc
import os
import tempfile

import torch
import torchvision


def build():
    model = torchvision.models.convnext_tiny(num_classes=100).cuda()
    for p in model.features[:4].parameters():
        p.requires_grad = False
    return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)


def train(model, optimizer, steps, size):
    for _ in range(steps):
        images, labels = torch.randn(size, 3, 224, 224, device="cuda"), torch.randint(0, 100, (size,), device="cuda")
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
model, optimizer = build()
train(model, optimizer, 3, 64)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "last.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    del model, optimizer
    gc.collect()
    torch.cuda.empty_cache()
    state = torch.load(path, map_location="cuda", weights_only=True)
model, optimizer = build()
model.load_state_dict(state["model"])
optimizer.load_state_dict(state["optimizer"])
del state
frozen = [p for p in model.parameters() if not p.requires_grad]
for p in frozen:
    p.requires_grad = True
optimizer.add_param_group({"params": frozen, "lr": 1e-5})
train(model, optimizer, 3, 48)
