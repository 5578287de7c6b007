"""`vramcast calibrate`: operators of many kinds and sizes, timed on the card here."""
