"""Truncated backpropagation through time with a GRU and a plain RNN, hidden states carried on."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30000, 512)
        self.gru = nn.GRU(512, 1024, 2, dropout=0.2)
        self.rnn = nn.RNN(1024, 1024, nonlinearity="relu")
        self.cell = nn.LSTMCell(1024, 512)
        self.head = nn.Linear(512, 30000)

    def forward(self, ids, state):
        gru, rnn, (h, c) = state
        x, gru = self.gru(self.embed(ids), gru)
        x, rnn = self.rnn(x, rnn)
        outputs = []
        for t in range(x.shape[0]):
            h, c = self.cell(x[t], (h, c))
            outputs.append(h)
        return self.head(torch.stack(outputs)), (gru, rnn, (h, c))


def detached(state):
    return state.detach() if torch.is_tensor(state) else tuple(detached(s) for s in state)


torch.manual_seed(0)
model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
zeros = lambda *shape: torch.zeros(*shape, device="cuda")
state = (zeros(2, 64, 1024), zeros(1, 64, 1024), (zeros(64, 512), zeros(64, 512)))
for step in range(6):
    ids = torch.randint(0, 30000, (71, 64), device="cuda")
    state = detached(state)
    output, state = model(ids[:-1], state)
    loss = nn.functional.cross_entropy(output.view(-1, 30000), ids[1:].view(-1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
print(loss.item())
