"""Shapes that follow from values: tokens dropped by a threshold, unique ids, ragged groups, hard examples kept for the next step."""

import torch
from torch import nn

torch.manual_seed(0)
table = nn.Embedding(200_000, 256, sparse=True).cuda()
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, activation="gelu"), 4).cuda()
gate, head = nn.Linear(256, 1).cuda(), nn.Linear(256, 64).cuda()
dense = torch.optim.AdamW([*encoder.parameters(), *gate.parameters(), *head.parameters()], lr=1e-3)
sparse = torch.optim.SparseAdam(table.parameters(), lr=1e-3)
hard = torch.empty(0, 128, dtype=torch.long, device="cuda")
for step in range(5):
    ids = torch.cat([torch.randint(0, 200_000, (32, 128), device="cuda"), hard])
    unique, inverse = torch.unique(ids, return_inverse=True)
    vectors = table(unique)[inverse]
    keep = torch.sigmoid(gate(vectors)).squeeze(-1) > 0.5
    longest = int(keep.sum(1).max().clamp(min=1))
    padded = vectors.new_zeros(len(ids), longest, 256)
    rows, _ = keep.nonzero(as_tuple=True)
    places = (keep.cumsum(1) - 1)[keep]
    padded = padded.index_put((rows, places), vectors[keep])
    out = head(encoder(padded).mean(1))
    losses = nn.functional.cross_entropy(out, ids[:, 0] % 64, reduction="none")
    hard = ids[losses.detach() > losses.detach().median()][:16]
    loss = losses.mean()
    dense.zero_grad()
    sparse.zero_grad()
    loss.backward()
    dense.step()
    sparse.step()
print(loss.item())
