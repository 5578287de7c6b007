"""nn.MultiheadAttention with and without weights, masks and padding, then nn.Transformer's fast path in evaluation."""

import torch
from torch import nn

torch.manual_seed(0)
device = "cuda"
attention = nn.MultiheadAttention(512, 8, dropout=0.1, batch_first=True).to(device)
plain = nn.MultiheadAttention(512, 8, batch_first=True, add_bias_kv=True, kdim=256, vdim=256).to(device)
seq2seq = nn.Transformer(512, 8, 4, 4, 2048, batch_first=True).to(device)
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 6).to(device)
head = nn.Linear(512, 1000).to(device)
modules = nn.ModuleList([attention, plain, seq2seq, encoder, head])
optimizer = torch.optim.AdamW(modules.parameters(), lr=1e-4)
for step in range(4):
    modules.train()
    x, memory = torch.randn(16, 384, 512, device=device), torch.randn(16, 256, 256, device=device)
    padding = torch.zeros(16, 384, dtype=torch.bool, device=device)
    padding[:, 300:] = True
    y, weights = attention(x, x, x, key_padding_mask=padding, need_weights=True, average_attn_weights=False)
    z, _ = plain(y, memory, memory, need_weights=False)
    causal = nn.Transformer.generate_square_subsequent_mask(384, device=device)
    out = seq2seq(
        x, z, tgt_mask=causal, src_key_padding_mask=padding, memory_key_padding_mask=padding, tgt_is_causal=True
    )
    out = encoder(out, src_key_padding_mask=padding)
    loss = (
        nn.functional.cross_entropy(head(out).flatten(0, 1), torch.randint(0, 1000, (16 * 384,), device=device))
        + weights.var()
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    modules.eval()
    with torch.inference_mode():
        encoder(torch.randn(64, 384, 512, device=device))
        encoder(torch.randn(64, 384, 512, device=device), src_key_padding_mask=padding.repeat(4, 1))
print(loss.item())
