"""Changes to an input: bytes, words, lines, and the structure of a document."""

from __future__ import annotations

import gzip
import json
import random
import re
from typing import Any

import yaml

_TOKENS = re.compile(rb"[A-Za-z_][\w]*|\d+\.?\d*|\s+|.", re.DOTALL)
_GZIP = b"\x1f\x8b"

NASTY_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**25, 1e308, 1e-308, -0.0, float("nan"), float("inf"),
    "", " ", "a" * 300, "x" * 5000, "../..", "/dev/zero", "/dev/null", "FIFO", "LOOP", ".", "~", "$HOME", "\x00",
    "\x1b[2J\x07", "\ud83d", "é\u202e", "none", "auto", "no", "1", "-1", "1e9", "nan", "0x10", "1_000", "batch",
    "batch ** 99", "(((((", "*" * 50, "(a+)+$", "[", "{}", "bf16", "a.b.c", "a:b", "a=b", "#", "::",
    "!!python/object:os.system", "\n\n", [], {}, [[]], {"": {}}, [None], [-1], ["a", 1], {"a": 1}, {"enabled": True},
    list(range(300)), {"class_path": "os.path"},
)  # fmt: skip
NASTY_BYTES = (
    b"\x00", b"\xff", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1b[31m", b"\r", b"\n", b"\r\n", b"\t", b"'", b'"', b"`", b"$(",
    b"${", b"((", b"))", b"[[", b"]]", b"{", b"}", b"[", b"]", b"&a ", b"*a", b"<<: *a", b"<<EOF\n", b"!!", b"#", b"//",
    b",", b":", b": ", b"- ", b"=", b"+=", b"\\", b"\\\n", b"%", b"@", b"|", b">", b"&&", b"||", b";", b";;", b"if ",
    b"fi\n", b"for x in ", b"do ", b"done\n", b"case ", b"esac\n", b"$A$A", b"9" * 50, b"9" * 5000, b"0" * 40, b"1e999",
    b"-1", b"NaN", b"Infinity", b"null", b"true", b"[" * 60, b"{" * 60, b'{"a":' * 60, b"(" * 300, b"a" * 3000,
    b"a." * 60, "é\u2028".encode(), b"\xed\xa0\x80", b"0x" + b"f" * 100, b"1:1:1", b"2001-01-01", b"---\n", b"...\n",
    b"? ", b"| ", b"\x85", b"\xc2\x85", b"--", b" -- ", b"$@", b"~",
)  # fmt: skip


def mutated(data: bytes, name: str, others: list[bytes], rng: random.Random) -> bytes:
    """A few changes of one kind or several."""
    packed = data.startswith(_GZIP) and rng.random() < 0.85
    if packed:
        data = gzip.decompress(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        change = rng.choices((_structure, _tokens, _bytes, _lines, _splice), (60, 20, 8, 8, 4))[0]
        data = change(data, name, others, rng)[:400_000]
    return gzip.compress(data, compresslevel=1, mtime=0) if packed else data


def mutated_words(words: list[str], rng: random.Random) -> list[str]:
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(words) + 1)
        place = min(at, len(words) - 1)
        nasty = _text(rng)
        match rng.randrange(6):
            case 0:
                words = [*words[:at], nasty, *words[at:]]
            case 1:
                words = [*words[:at], *words[at + 1 :]]
            case 2 if words:
                words[place] = nasty
            case 3 if words:
                cut = rng.randrange(len(words[place]) + 1)
                words[place] = words[place][:cut] + nasty + words[place][cut:]
            case 4:
                words = [*words, *words[at:]]
            case _:
                words = [*words[at:], *words[:at]]
    return words


def _text(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(NASTY_BYTES).decode("utf-8", errors="surrogateescape")
    value = rng.choice(NASTY_VALUES)
    return value if isinstance(value, str) else json.dumps(value)


def _bytes(data: bytes, name: str, others: list[bytes], rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    length = rng.choice((1, 2, 8, 64, 1000))
    match rng.randrange(7):
        case 0:
            return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        case 1:
            return data[:at] + data[at + length :]
        case 2:
            return data[:at] + rng.choice(NASTY_BYTES) + data[at:]
        case 3:
            return data[:at]
        case 4:
            return data[:at] + data[at : at + length] * rng.choice((2, 5, 100)) + data[at + length :]
        case 5:
            return data[:at] + rng.randbytes(rng.choice((1, 4, 50))) + data[at:]
        case _:
            return data[at:]


def _tokens(data: bytes, name: str, others: list[bytes], rng: random.Random) -> bytes:
    tokens = _TOKENS.findall(data[:100_000])
    if not tokens:
        return rng.choice(NASTY_BYTES)
    at, other = rng.randrange(len(tokens)), rng.randrange(len(tokens))
    match rng.randrange(5):
        case 0:
            tokens[at] = rng.choice(NASTY_BYTES)
        case 1:
            tokens[at], tokens[other] = tokens[other], tokens[at]
        case 2:
            tokens[at] = tokens[other]
        case 3:
            del tokens[at]
        case _:
            tokens[at] = _encoded(_text(rng))
    return b"".join(tokens)


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", errors="surrogatepass")


def _lines(data: bytes, name: str, others: list[bytes], rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(5):
        case 0:
            lines.insert(other, lines[at])
        case 1:
            lines[at:at] = [lines[at]] * rng.choice((3, 30, 300))
        case 2:
            del lines[at]
        case 3:
            lines[at], lines[other] = lines[other], lines[at]
        case _:
            lines[at] = b"  " + lines[at]
    return b"\n".join(lines)


def _splice(data: bytes, name: str, others: list[bytes], rng: random.Random) -> bytes:
    other = rng.choice(others)
    at, cut = rng.randrange(len(data) + 1), rng.randrange(len(other) + 1)
    return data[:at] + other[cut : cut + 20_000]


def _structure(data: bytes, name: str, others: list[bytes], rng: random.Random) -> bytes:
    """JSON and YAML: a value somewhere in the document becomes another one."""
    is_yaml = name.endswith((".yaml", ".yml"))
    try:
        text = data.decode()
        document = yaml.safe_load(text) if is_yaml and len(text) < 20_000 else json.loads(text)
    except (ValueError, yaml.YAMLError, RecursionError, TypeError, AttributeError, OverflowError):
        return _tokens(data, name, others, rng)
    places = _places(document)
    if not places:
        return _bytes(data, name, others, rng)
    where, key = rng.choice(places)
    match rng.randrange(8):
        case 0 | 1 | 2:
            where[key] = rng.choice(NASTY_VALUES)
        case 3:
            other, other_key = rng.choice(places)
            where[key] = other[other_key]
        case 4:
            del where[key]
        case 5 if isinstance(where, dict):
            where[_text(rng)] = where.pop(key)
        case 6:
            where[key] = rng.choice(([where[key]], {"a": where[key]}, str(where[key])[:1000], [where[key]] * 50))
        case 7 if isinstance(where, list):
            where.insert(key, where[key])
        case _:
            where[key] = _changed_number(where[key], rng)
    try:
        if is_yaml:
            return _encoded(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
        return _encoded(json.dumps(document, ensure_ascii=rng.random() < 0.8))
    except (ValueError, yaml.YAMLError, RecursionError, TypeError):
        return _tokens(data, name, others, rng)


def _changed_number(value: Any, rng: random.Random) -> Any:
    if isinstance(value, (int, float)):
        return rng.choice((-value, value + 1, value * 2, value * 10**6, value - 1, value * 0.5, str(value), 0))
    return rng.choice(NASTY_VALUES)


def _places(document: Any, most: int = 4000) -> list[tuple[Any, Any]]:
    places: list[tuple[Any, Any]] = []
    open_parts = [document]
    while open_parts and len(places) < most:
        part = open_parts.pop()
        items = (
            list(part.items()) if isinstance(part, dict) else list(enumerate(part)) if isinstance(part, list) else []
        )
        places += [(part, key) for key, _ in items[:500]]
        open_parts += [value for _, value in items[:500] if isinstance(value, (dict, list))]
    return places
