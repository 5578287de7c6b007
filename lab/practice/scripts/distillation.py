"""Knowledge distillation: a BERT teacher in half precision, a shallow student, hidden states and logits matched."""

import torch
import torch.nn.functional as F
from transformers import BertConfig, BertForMaskedLM

torch.manual_seed(0)
teacher = BertForMaskedLM(BertConfig(num_hidden_layers=12)).cuda().half().eval()
student = BertForMaskedLM(BertConfig(num_hidden_layers=4)).cuda()
optimizer = torch.optim.AdamW(student.parameters(), lr=5e-5)
scaler = torch.amp.GradScaler()
for step in range(5):
    ids = torch.randint(0, 30522, (16, 384), device="cuda")
    labels = torch.where(torch.rand(16, 384, device="cuda") < 0.15, ids, -100)
    with torch.no_grad():
        taught = teacher(ids, output_hidden_states=True)
    with torch.autocast("cuda", dtype=torch.float16):
        learned = student(ids, labels=labels, output_hidden_states=True)
        soft = (
            F.kl_div(F.log_softmax(learned.logits / 2, -1), F.softmax(taught.logits / 2, -1), reduction="batchmean") * 4
        )
        hidden = sum(
            F.mse_loss(mine, theirs) for mine, theirs in zip(learned.hidden_states[1:], taught.hidden_states[3::3])
        )
        loss = learned.loss + soft + hidden
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print(loss.item())
