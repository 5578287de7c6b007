"""CLIP-like training whose image and text towers run on streams of their own, forward and backward."""

import torch
import torch.nn.functional as F
import torchvision
from torch import nn

torch.manual_seed(0)
images_stream, text_stream = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
vision = torchvision.models.resnet50(num_classes=256).cuda()
text = nn.Sequential(
    nn.Embedding(20000, 512),
    nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 6, enable_nested_tensor=False),
).cuda()
project = nn.Linear(512, 256, device="cuda")
scale = nn.Parameter(torch.tensor(2.66, device="cuda"))
parameters = [*vision.parameters(), *text.parameters(), *project.parameters(), scale]
optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.2, betas=(0.9, 0.98))
for step in range(5):
    pixels = torch.randn(64, 3, 224, 224, pin_memory=True)
    tokens = torch.randint(0, 20000, (64, 77), pin_memory=True)
    main = torch.cuda.current_stream()
    images_stream.wait_stream(main)
    text_stream.wait_stream(main)
    with torch.cuda.stream(images_stream):
        image = F.normalize(vision(pixels.cuda(non_blocking=True)), dim=-1)
    with torch.cuda.stream(text_stream):
        sentence = F.normalize(project(text(tokens.cuda(non_blocking=True)).mean(1)), dim=-1)
    main.wait_stream(images_stream)
    main.wait_stream(text_stream)
    image.record_stream(main)
    sentence.record_stream(main)
    logits = scale.exp() * image @ sentence.T
    labels = torch.arange(64, device="cuda")
    loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()
print(loss.item())
