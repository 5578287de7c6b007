"""The card as PyTorch meets it: torch.cuda, its streams and graphs, and how a virtual card is entered and left."""
