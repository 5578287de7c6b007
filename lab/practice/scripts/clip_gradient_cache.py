"""CLIP with a large batch in chunks: embeddings without gradients first, their gradients, then each chunk again."""

import torch
from transformers import CLIPConfig, CLIPModel

torch.manual_seed(0)
model = CLIPModel(CLIPConfig()).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, foreach=False)
chunk, batch = 32, 128


def embed(images, ids):
    with torch.autocast("cuda", torch.float16):
        out = model(input_ids=ids, pixel_values=images)
    return out.image_embeds.float(), out.text_embeds.float()


scaler = torch.amp.GradScaler()
for step in range(3):
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    ids = torch.randint(0, 49000, (batch, 77), device="cuda")
    with torch.no_grad():
        parts = [embed(i, t) for i, t in zip(images.split(chunk), ids.split(chunk), strict=True)]
    image, text = (torch.cat(p).requires_grad_() for p in zip(*parts, strict=True))
    logits = image @ text.t() * model.logit_scale.exp()
    labels = torch.arange(batch, device="cuda")
    loss = (
        torch.nn.functional.cross_entropy(logits, labels) + torch.nn.functional.cross_entropy(logits.t(), labels)
    ) / 2
    scaler.scale(loss).backward()
    for i, t, gi, gt in zip(
        images.split(chunk), ids.split(chunk), image.grad.split(chunk), text.grad.split(chunk), strict=True
    ):
        a, b = embed(i, t)
        ((a * gi).sum() + (b * gt).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
print(loss.item())
