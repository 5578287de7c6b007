"""Stochastic weight averaging: SWALR, an averaged model, and update_bn at the end."""

import torch
import torchvision
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

torch.manual_seed(0)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.randn(192, 3, 160, 160), torch.randint(0, 10, (192,))), batch_size=64
)
model = torchvision.models.mobilenet_v2(num_classes=10).cuda()
averaged = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = SWALR(optimizer, swa_lr=0.01, anneal_epochs=1)
for epoch in range(3):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
        loss.backward()
        optimizer.step()
    if epoch >= 1:
        averaged.update_parameters(model)
        scheduler.step()
update_bn(loader, averaged, device="cuda")
print(loss.item())
