"""DINO-like self-distillation: two large and six small crops, centering, a momentum teacher, schedules."""

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import VisionTransformer


class Head(nn.Module):
    def __init__(self, width, out=65536):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(width, 2048), nn.GELU(), nn.Linear(2048, 256))
        self.last = nn.utils.weight_norm(nn.Linear(256, out, bias=False))
        self.last.weight_g.data.fill_(1)
        self.last.weight_g.requires_grad = False

    def forward(self, x):
        return self.last(F.normalize(self.mlp(x), dim=-1))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.large = VisionTransformer(224, 16, 8, 6, 384, 1536)
        self.large.heads = nn.Identity()
        self.head = Head(384)

    def forward(self, crops):
        out = []
        for crop in crops:
            if crop.shape[-1] != 224:
                crop = F.interpolate(crop, size=224, mode="bicubic")
            out.append(self.large(crop))
        return self.head(torch.cat(out))


torch.manual_seed(0)
student = Net().cuda()
teacher = Net().cuda()
teacher.load_state_dict(student.state_dict())
teacher.requires_grad_(False)
center = torch.zeros(1, 65536, device="cuda")
optimizer = torch.optim.AdamW(student.parameters(), lr=5e-4)
scaler = torch.amp.GradScaler("cuda")
for step in range(4):
    crops = [torch.randn(16, 3, 224, 224).cuda() for _ in range(2)] + [
        torch.randn(16, 3, 96, 96).cuda() for _ in range(6)
    ]
    with torch.autocast("cuda", dtype=torch.float16):
        with torch.no_grad():
            taught = teacher(crops[:2])
        learned = student(crops)
        targets = F.softmax((taught - center) / 0.04, -1).detach().chunk(2)
        guesses = (learned / 0.1).chunk(8)
        terms = [
            (-t * F.log_softmax(s, -1)).sum(-1).mean()
            for i, t in enumerate(targets)
            for j, s in enumerate(guesses)
            if i != j
        ]
        loss = sum(terms) / len(terms)
    center = center * 0.9 + taught.mean(0, keepdim=True) * 0.1
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(student.parameters(), 3.0)
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        for s, t in zip(student.parameters(), teacher.parameters()):
            t.data.mul_(0.996).add_(0.004 * s.detach().data)
print(loss.item())
