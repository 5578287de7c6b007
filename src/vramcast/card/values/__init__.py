"""What a program is told that reads a tensor of the card."""
