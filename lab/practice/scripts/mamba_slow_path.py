"""Mamba of transformers without its kernels: the scan runs step by step in PyTorch."""

import torch
from transformers import MambaConfig, MambaForCausalLM

torch.manual_seed(0)
config = MambaConfig(hidden_size=512, num_hidden_layers=4, state_size=16, vocab_size=16000, use_mambapy=False)
model = MambaForCausalLM(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True)
for step in range(3):
    ids = torch.randint(0, 16000, (4, 128), device="cuda")
    loss = model(ids, labels=ids, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
