"""Doubles the batch until the card is out of memory, goes back, and trains; memory is capped by a fraction."""

import gc

import torch
import torchvision

torch.manual_seed(0)
torch.cuda.set_per_process_memory_fraction(8 * 1024**3 / torch.cuda.get_device_properties(0).total_memory)
model = torchvision.models.resnet50().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def step(size):
    images, labels = torch.randn(size, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (size,), device="cuda")
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


size = 16
while True:
    try:
        step(size)
    except torch.cuda.OutOfMemoryError:
        optimizer.zero_grad()
        gc.collect()
        torch.cuda.empty_cache()
        size //= 2
        break
    size *= 2
for _ in range(3):
    step(size)
print(size)
