"""ConvNeXt with the exponential average of swa_utils, buffers too; evaluated in inference mode in larger batches."""

import torch
import torchvision
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

torch.manual_seed(0)
model = torchvision.models.regnet_y_1_6gf(num_classes=100).cuda().to(memory_format=torch.channels_last)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999), use_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-5)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.4, total_steps=8)
smooth = torch.nn.CrossEntropyLoss(label_smoothing=0.1)


def batches(count, size):
    generator = torch.Generator("cuda").manual_seed(size)
    for _ in range(count):
        images = torch.randn(size, 3, 192, 192, device="cuda", generator=generator)
        yield images.contiguous(memory_format=torch.channels_last), torch.randint(0, 100, (size,), device="cuda")


@torch.inference_mode()
def evaluate(network):
    network.eval()
    right = torch.zeros((), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        for images, labels in batches(2, 256):
            right += (network(images).topk(5).indices == labels[:, None]).any(1).sum()
    return right.item() / 512


for epoch in range(2):
    model.train()
    for images, labels in batches(4, 64):
        with torch.autocast("cuda", torch.bfloat16):
            loss = smooth(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        average.update_parameters(model)
    update_bn(batches(2, 64), average)
    print(epoch, loss.item(), evaluate(model), evaluate(average))
