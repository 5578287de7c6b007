"""PGD adversarial training with TRADES, and an energy-based term with Langevin sampling."""

import torch
import torch.nn.functional as F
import torchvision

torch.manual_seed(0)
model = torchvision.models.wide_resnet50_2(num_classes=10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
for step in range(4):
    x, y = torch.rand(64, 3, 96, 96, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
    model.eval()
    clean = F.softmax(model(x), 1).detach()
    adversarial = x + 0.001 * torch.randn_like(x)
    for _ in range(5):
        adversarial.requires_grad_()
        with torch.enable_grad():
            divergence = F.kl_div(F.log_softmax(model(adversarial), 1), clean, reduction="sum")
        gradient = torch.autograd.grad(divergence, [adversarial])[0]
        adversarial = adversarial.detach() + 0.007 * gradient.sign()
        adversarial = torch.min(torch.max(adversarial, x - 0.031), x + 0.031).clamp(0, 1)
    model.train()
    sample = torch.rand(16, 3, 96, 96, device="cuda", requires_grad=True)
    for _ in range(3):
        energy = model(sample).logsumexp(1).sum()
        (slope,) = torch.autograd.grad(energy, sample)
        sample.data += slope + 0.01 * torch.randn_like(sample)
    optimizer.zero_grad()
    logits = model(x)
    loss = F.cross_entropy(logits, y)
    loss = loss + 6 * F.kl_div(
        F.log_softmax(model(adversarial.detach()), 1), F.softmax(logits, 1), reduction="batchmean"
    )
    loss = loss + model(sample.detach()).logsumexp(1).mean() - logits.logsumexp(1).mean()
    loss.backward()
    optimizer.step()
print(loss.item())
