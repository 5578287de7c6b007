"""Every call of a program on the card: from torch's function to the bytes that are booked for its tensors."""
