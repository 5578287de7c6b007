"""DETR in a page: torchvision's ResNet-50, nn.Transformer, learned positions, a Hungarian matcher from scipy."""

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import nn
from torchvision.models import resnet50
from torchvision.ops import box_convert, generalized_box_iou, sigmoid_focal_loss


class MiniDETR(nn.Module):
    def __init__(self, classes=91, width=256, queries=100):
        super().__init__()
        backbone = resnet50()
        self.backbone = nn.Sequential(*list(backbone.children())[:-2])
        self.conv = nn.Conv2d(2048, width, 1)
        self.transformer = nn.Transformer(width, 8, 6, 6, batch_first=True)
        self.classes, self.boxes = nn.Linear(width, classes + 1), nn.Linear(width, 4)
        self.queries = nn.Parameter(torch.rand(queries, width))
        self.rows, self.columns = nn.Parameter(torch.rand(50, width // 2)), nn.Parameter(torch.rand(50, width // 2))

    def forward(self, x):
        h = self.conv(self.backbone(x))
        height, width = h.shape[-2:]
        position = (
            torch.cat(
                [
                    self.columns[:width].unsqueeze(0).repeat(height, 1, 1),
                    self.rows[:height].unsqueeze(1).repeat(1, width, 1),
                ],
                -1,
            )
            .flatten(0, 1)
            .unsqueeze(0)
        )
        h = self.transformer(position + 0.1 * h.flatten(2).transpose(1, 2), self.queries.expand(x.shape[0], -1, -1))
        return self.classes(h), self.boxes(h).sigmoid()


@torch.no_grad()
def match(logits, boxes, targets):
    pairs = []
    for logit, box, target in zip(logits, boxes, targets):
        cost = -logit.softmax(-1)[:, target["labels"]] + 5 * torch.cdist(box, target["boxes"], p=1)
        cost -= 2 * generalized_box_iou(
            box_convert(box, "cxcywh", "xyxy"), box_convert(target["boxes"], "cxcywh", "xyxy")
        )
        rows, columns = linear_sum_assignment(cost.cpu())
        pairs.append((torch.as_tensor(rows), torch.as_tensor(columns)))
    return pairs


torch.manual_seed(0)
model = MiniDETR().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(4):
    images = torch.randn(8, 3, 512, 512 + 64 * (step % 2), device="cuda")
    targets = [
        {"labels": torch.randint(0, 91, (6,), device="cuda"), "boxes": torch.rand(6, 4, device="cuda") * 0.3 + 0.2}
        for _ in range(8)
    ]
    logits, boxes = model(images)
    pairs = match(logits, boxes, targets)
    labels = torch.full(logits.shape[:2], 91, dtype=torch.long, device="cuda")
    loss_box = loss_iou = 0.0
    for i, (rows, columns) in enumerate(pairs):
        labels[i, rows] = targets[i]["labels"][columns]
        mine, theirs = boxes[i, rows], targets[i]["boxes"][columns]
        loss_box = loss_box + F.l1_loss(mine, theirs)
        giou = generalized_box_iou(box_convert(mine, "cxcywh", "xyxy"), box_convert(theirs, "cxcywh", "xyxy"))
        loss_iou = loss_iou + (1 - giou.diagonal()).mean()
    loss = F.cross_entropy(logits.transpose(1, 2), labels) + 5 * loss_box + 2 * loss_iou
    loss = loss + sigmoid_focal_loss(logits, F.one_hot(labels, 92).float(), reduction="mean")
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
print(loss.item())
