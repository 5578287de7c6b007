"""An RNN-T: encoder, prediction network, joint, and a transducer loss written in PyTorch."""

import torch
from torch import nn


class Transducer(nn.Module):
    def __init__(self, vocabulary=256, width=512):
        super().__init__()
        self.encoder = nn.LSTM(80, width, 2, batch_first=True)
        self.embed = nn.Embedding(vocabulary, width)
        self.predictor = nn.GRU(width, width, batch_first=True)
        self.joint = nn.Linear(width, vocabulary)

    def forward(self, speech, labels):
        encoded = self.encoder(speech)[0][:, ::4]
        predicted = self.predictor(self.embed(nn.functional.pad(labels, (1, 0))))[0]
        return self.joint(torch.tanh(encoded.unsqueeze(2) + predicted.unsqueeze(1))).log_softmax(-1)


def transducer_loss(log_probs, labels):
    batch, frames, positions, _ = log_probs.shape
    blank = log_probs[..., 0]
    emit = log_probs[:, :, :-1].gather(3, labels[:, None, :, None].expand(-1, frames, -1, -1)).squeeze(3)
    alpha = torch.cat([blank.new_zeros(batch, 1), emit[:, 0].cumsum(1)], 1)
    for t in range(1, frames):
        stay = alpha + blank[:, t - 1]
        rows = [stay[:, :1]]
        for u in range(1, positions):
            rows.append(torch.logaddexp(stay[:, u : u + 1], rows[-1] + emit[:, t, u - 1 : u]))
        alpha = torch.cat(rows, 1)
    return -(alpha[:, -1] + blank[:, -1, -1]).mean()


torch.manual_seed(0)
model = Transducer().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(4):
    speech = torch.randn(16, 240, 80, device="cuda")
    labels = torch.randint(1, 256, (16, 12), device="cuda")
    loss = transducer_loss(model(speech, labels), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
