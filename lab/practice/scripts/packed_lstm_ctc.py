"""Speech: a convolutional front end, a bidirectional LSTM on packed sequences, CTC loss."""

import random

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Recognizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 32, (11, 41), (2, 2), (5, 20)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20))
        self.rnn = nn.LSTM(32 * 40, 768, num_layers=3, bidirectional=True, batch_first=True, dropout=0.1)
        self.out = nn.Linear(1536, 29)

    def forward(self, x, lengths):
        x = self.conv(x.unsqueeze(1))
        x = x.permute(0, 2, 1, 3).flatten(2)
        lengths = (lengths + 1) // 2
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        x, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.out(x).log_softmax(-1), lengths


random.seed(0)
torch.manual_seed(0)
model = Recognizer().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
ctc = nn.CTCLoss(zero_infinity=True)
for step in range(6):
    lengths = torch.tensor([random.randint(400, 1000) for _ in range(16)])
    speech = torch.randn(16, int(lengths.max()), 80, device="cuda")
    target_lengths = torch.tensor([random.randint(20, 60) for _ in range(16)])
    targets = torch.randint(1, 29, (16, 60), device="cuda")
    output, output_lengths = model(speech, lengths)
    loss = ctc(output.transpose(0, 1), targets, output_lengths, target_lengths)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
