"""Batches are copied to the card on a stream of their own while the step before runs."""

import torch
import torchvision


class Prefetcher:
    def __init__(self, batches):
        self.batches = iter(batches)
        self.stream = torch.cuda.Stream()
        self.load()

    def load(self):
        try:
            images, labels = next(self.batches)
        except StopIteration:
            self.following = None
            return
        with torch.cuda.stream(self.stream):
            images = images.cuda(non_blocking=True)
            labels = labels.cuda(non_blocking=True)
            images = images.float().div_(255).sub_(0.45).div_(0.22)
            self.following = images, labels

    def __iter__(self):
        while self.following is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            images, labels = self.following
            images.record_stream(torch.cuda.current_stream())
            labels.record_stream(torch.cuda.current_stream())
            self.load()
            yield images, labels


torch.manual_seed(0)
batches = [
    (
        torch.randint(0, 256, (128, 3, 224, 224), dtype=torch.uint8).pin_memory(),
        torch.randint(0, 1000, (128,)).pin_memory(),
    )
    for _ in range(8)
]
model = torchvision.models.resnet34().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for images, labels in Prefetcher(batches):
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
