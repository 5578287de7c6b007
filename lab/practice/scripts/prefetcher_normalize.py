"""The usual prefetcher of vision scripts: bytes from pinned memory on a side stream, turned to floats and normalized there."""

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import densenet121

torch.manual_seed(0)


class Prefetcher:
    def __init__(self, loader):
        self.loader, self.stream = iter(loader), torch.cuda.Stream()
        self.mean = torch.tensor([0.485, 0.456, 0.406]).mul_(255).view(1, 3, 1, 1).cuda()
        self.std = torch.tensor([0.229, 0.224, 0.225]).mul_(255).view(1, 3, 1, 1).cuda()
        self.preload()

    def preload(self):
        try:
            self.image, self.label = next(self.loader)
        except StopIteration:
            self.image = self.label = None
            return
        with torch.cuda.stream(self.stream):
            self.image = self.image.cuda(non_blocking=True).float().sub_(self.mean).div_(self.std)
            self.label = self.label.cuda(non_blocking=True)

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        image, label = self.image, self.label
        if image is not None:
            image.record_stream(torch.cuda.current_stream())
            label.record_stream(torch.cuda.current_stream())
            self.preload()
        return image, label


data = TensorDataset(torch.randint(0, 256, (256, 3, 160, 160), dtype=torch.uint8), torch.randint(0, 100, (256,)))
net = densenet121(num_classes=100, memory_efficient=True).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
prefetcher = Prefetcher(DataLoader(data, 48, pin_memory=True))
image, label = prefetcher.next()
while image is not None:
    loss = torch.nn.functional.cross_entropy(net(image), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    image, label = prefetcher.next()
print(loss.item())
