"""GPT-2 on batches padded to their own longest sequence."""

import random

import torch
from transformers import GPT2Config, GPT2LMHeadModel

random.seed(0)
torch.manual_seed(0)
config = GPT2Config(n_layer=8, n_embd=768, n_head=12, n_positions=1024)
model = GPT2LMHeadModel(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(8):
    lengths = [random.randint(64, 1024) for _ in range(8)]
    ids = torch.zeros(8, max(lengths), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(0, config.vocab_size, (length,))
        mask[row, :length] = 1
    ids, mask = ids.cuda(), mask.cuda()
    labels = ids.masked_fill(mask == 0, -100)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(ids, attention_mask=mask, labels=labels).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
