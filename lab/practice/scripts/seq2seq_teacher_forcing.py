"""An LSTM with attention that decodes token by token, teacher forcing by a coin of Python's random."""

import random

import torch
from torch import nn

random.seed(1)
torch.manual_seed(1)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(12000, 384), nn.LSTM(384, 512, 2, bidirectional=True, dropout=0.2)

    def forward(self, source, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.embedding(source), lengths, enforce_sorted=False)
        output, (h, c) = self.rnn(packed)
        output, _ = nn.utils.rnn.pad_packed_sequence(output)
        join = lambda s: s.view(2, 2, s.size(1), -1).transpose(1, 2).reshape(2, s.size(1), -1)
        return output, (join(h), join(c))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9000, 384)
        self.rnn, self.out = nn.LSTM(384 + 1024, 1024, 2, dropout=0.2), nn.Linear(2048, 9000)

    def forward(self, token, state, memory, mask):
        query = state[0][-1]
        scores = torch.einsum("bd,sbd->bs", query, memory).masked_fill(~mask, float("-inf"))
        context = torch.einsum("bs,sbd->bd", scores.softmax(-1), memory)
        output, state = self.rnn(torch.cat([self.embedding(token), context], -1)[None], state)
        return self.out(torch.cat([output[0], context], -1)), state


encoder, decoder = Encoder().cuda(), Decoder().cuda()
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
for step in range(6):
    lengths = torch.tensor(sorted(random.sample(range(12, 60), 32), reverse=True))
    source = torch.randint(0, 12000, (int(lengths.max()), 32)).cuda()
    target = torch.randint(0, 9000, (random.randint(15, 50), 32)).cuda()
    memory, state = encoder(source, lengths)
    mask = (torch.arange(len(source))[None] < lengths[:, None]).cuda()
    token, loss = target[0], 0
    for t in range(1, len(target)):
        logits, state = decoder(token, state, memory, mask)
        loss = loss + nn.functional.cross_entropy(logits, target[t])
        token = target[t] if random.random() < 0.5 else logits.argmax(-1)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_([*encoder.parameters(), *decoder.parameters()], 1)
    optimizer.step()
print(loss.item())
