"""The vocabulary of GPT-2 has to be downloaded: here every four characters are a token, of as many as it has."""

import zlib


class Encoding:
    def __init__(self, name):
        self.name = name
        self.n_vocab, self.eot_token = 50257, 50256

    def encode(self, text, **options):
        return [zlib.crc32(text[at : at + 4].encode()) % self.eot_token for at in range(0, len(text), 4)]

    encode_ordinary = encode

    def decode(self, tokens):
        return " ".join(map(str, tokens))


def get_encoding(name):
    return Encoding(name)
