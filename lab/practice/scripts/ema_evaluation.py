"""ResNet-50 with an exponential moving average of the weights, evaluated on larger batches after each epoch."""

import torch
import torchvision
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
train = DataLoader(TensorDataset(torch.randn(128, 3, 224, 224), torch.randint(0, 1000, (128,))), 64, shuffle=True)
valid = DataLoader(TensorDataset(torch.randn(192, 3, 256, 256), torch.randint(0, 1000, (192,))), 192)
device = torch.device("cuda")
model = torchvision.models.resnet50().to(device)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999), use_buffers=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
for epoch in range(3):
    model.train()
    for images, labels in train:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
    average.eval()
    correct = 0
    with torch.no_grad():
        for images, labels in valid:
            output = average(images.to(device))
            correct += (output.argmax(1) == labels.to(device)).sum().item()
print(correct)
