"""Train GPT-2 (124 million parameters) on random tokens: ordinary PyTorch, nothing in it knows vramcast."""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--sequence-length", type=int, default=1024)
parser.add_argument("--steps", type=int, default=1000)
args = parser.parse_args()

model = GPT2LMHeadModel(GPT2Config()).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

for step in range(args.steps):
    tokens = torch.randint(0, 50257, (args.batch_size, args.sequence_length), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 100 == 0:
        print(f"step {step}: loss {loss.item():.3f}")
