"""What the words of a shell script expand to: quotes, variables and their forms, arithmetic."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from vramcast.base.errors import UsageError
from vramcast.launchers.shell import arithmetic
from vramcast.launchers.shell.syntax import closing
from vramcast.launchers.shell.variables import MOST_WORDS, NOT_SET, UNKNOWN, WITHOUT_ARGUMENTS, Value, Variables

_MOST_EXPANDED = 4_000_000
"""Characters that all words of a script expand to together."""
_LONGEST_MATCHED = 2_000

NAME = re.compile(r"[A-Za-z_]\w*")
_PARAMETER = re.compile(r"(#?)([A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[([^\]]*)\])?(.*)", re.DOTALL)
_OPERATION = re.compile(r"(:?[-=+?]|%%?|##?|//?)(.*)", re.DOTALL)
_CUT = re.compile(r":((?:[^:{]|\{[^}]*\})+)(?::(.+))?")
_EXPR = re.compile(r"""(?:\$\(|`)\s*expr((?:\s+(?:\d+|\$\w+|\$\{\w+\}|[-+/%]|\\?[*()]|'\*'|"\*"))+)\s*[)`]""")
"""`expr 16 / $n`, the arithmetic that old shells have in a program."""
_SLICE = re.compile(r":\s*([0-9]{1,4})(?::\s*([0-9]{1,4}))?")


class Words(Variables):
    def __init__(self, where: str) -> None:
        super().__init__(where)
        self._expanded = 0

    def _words(self, raw: str, *, split: bool = True) -> list[str]:
        """What a word expands to; `split` at blanks where it is not quoted."""
        fields = _Fields(split)
        self._expand(raw, fields)
        words = fields.finish()
        self._expanded += sum(len(word) + 1 for word in words)
        if self._expanded > _MOST_EXPANDED or len(words) > MOST_WORDS:
            raise UsageError(f"{self._where}:{self.line}: the script's variables expand to more than can be read")
        return words

    def _expand(self, raw: str, fields: _Fields) -> None:
        at, in_quotes = 0, False
        while at < len(raw):
            sign = raw[at]
            if sign == "\\" and at + 1 < len(raw):
                after = raw[at + 1]
                if after != "\n":
                    keep = in_quotes and after not in '$`"\\'
                    fields.add(f"\\{after}" if keep else after, quoted=True)
                at += 2
            elif sign == "'" and not in_quotes:
                end = raw.find("'", at + 1)
                end = len(raw) if end < 0 else end
                fields.add(raw[at + 1 : end], quoted=True)
                at = end + 1
            elif sign == '"':
                in_quotes = not in_quotes
                fields.add("", quoted=True)
                at += 1
            elif sign == "`":
                end = raw.find("`", at + 1)
                end = len(raw) if end < 0 else end + 1
                fields.add(self._output(raw[at:end]), quoted=True)
                at = end
            elif sign == "$" and at + 1 < len(raw):
                at = self._dollar(raw, at, fields, in_quotes=in_quotes)
            elif sign in "<>" and raw[at + 1 : at + 2] == "(":
                fields.add(self._output(raw[at:]), quoted=True)
                return
            else:
                end = at + 1
                while end < len(raw) and raw[end] not in "\\'\"`$<>":
                    end += 1
                fields.add(raw[at:end], quoted=True)
                at = end

    def _output(self, spelt: str) -> str:
        sum_of = _EXPR.fullmatch(spelt)
        if sum_of is not None:
            value = self._arithmetic(sum_of[1].replace("\\", "").replace("'", "").replace('"', ""))
            if value is not None:
                return str(value)
        return self._unknown(spelt, f"it is what a program prints (line {self.line})")

    def _dollar(self, raw: str, at: int, fields: _Fields, *, in_quotes: bool) -> int:
        after = raw[at + 1]
        if raw.startswith("$((", at):
            end = closing(raw, at + 2, "(", ")")
            end = len(raw) if end < 0 else end
            value = self._arithmetic(raw[at + 3 : end - 2])
            unknown = self._unknown(raw[at:end], f"the arithmetic in line {self.line} needs what is not known")
            fields.add(unknown if value is None else str(value), quoted=in_quotes)
            return end
        if after == "(":
            end = closing(raw, at + 2, "(", ")")
            end = len(raw) if end < 0 else end
            fields.add(self._output(raw[at:end]), quoted=True)
            return end
        if after == "{":
            end = closing(raw, at + 2, "{", "}")
            end = len(raw) if end < 0 else end
            self._parameter(raw[at + 2 : end - 1], raw[at:end], fields, in_quotes=in_quotes)
            return end
        if after == "'":  # $'...'
            end = raw.find("'", at + 2)
            end = len(raw) if end < 0 else end
            fields.add(raw[at + 2 : end].replace("\\n", "\n").replace("\\t", "\t"), quoted=True)
            return end + 1
        name = NAME.match(raw, at + 1)
        if name is not None:
            self._parameter(name[0], f"${name[0]}", fields, in_quotes=in_quotes)
            return name.end()
        if after.isdigit() or after in "@*#?$!-":
            self._parameter(after, f"${after}", fields, in_quotes=in_quotes)
            return at + 2
        fields.add("$", quoted=True)
        return at + 1

    def _parameter(self, inside: str, spelt: str, fields: _Fields, *, in_quotes: bool) -> None:
        match = _PARAMETER.fullmatch(inside)
        if match is None or (match[1] and match[4]):
            fields.add(self._unknown(spelt, f"its form in line {self.line} is not followed"), quoted=True)
            return
        is_length, name, index, rest = bool(match[1]), match[2], match[3], match[4]
        if name in "@*#" or (is_length and name in "@*"):
            self._positional("#" if is_length else name, rest, fields, in_quotes=in_quotes)
            return
        if name in "?$!-":
            fields.add(self._unknown(spelt, "only a running shell knows it"), quoted=True)
            return
        value = self._lookup(name)
        if index is not None:
            value = self._item(value, index, spelt)
        elif isinstance(value, list):
            value = value[0] if value else None
        if is_length:
            fields.add(self._length(value, spelt), quoted=in_quotes)
            return
        if rest:
            self._operation(name, value, rest, spelt, fields, in_quotes=in_quotes)
        elif isinstance(value, list):
            fields.add_all(value, quoted=in_quotes)
        elif value is None:
            text = self._not_set(spelt)
            fields.add(text, quoted=in_quotes or bool(text))
        else:
            fields.add(value, quoted=in_quotes)

    def _not_set(self, spelt: str) -> str:
        """What is put for a variable that is not set."""
        return self._unknown(spelt, NOT_SET)

    def file_is(self, operator: str, path: str) -> bool | None:
        """The answer to [ -f path ] and the like; None where it is not known."""
        return None

    def _positional(self, name: str, rest: str, fields: _Fields, *, in_quotes: bool) -> None:
        arguments = self._arguments[-1] if self._arguments else []
        if not self._arguments:
            self._assumed[WITHOUT_ARGUMENTS] = None
        spelt, part = f"${{{name}{rest}}}", _SLICE.fullmatch(rest)
        if part is not None and name != "#":
            first = int(part[1])
            arguments = arguments[max(0, first - 1) :][: None if part[2] is None else int(part[2])]
            fields.add_all(arguments, quoted=in_quotes)
        elif rest and not rest.startswith((":-", "-")):
            fields.add(self._unknown(spelt, f"its form in line {self.line} is not followed"), quoted=True)
        elif name == "#":
            fields.add(str(len(arguments)), quoted=in_quotes)
        elif arguments or not rest:
            fields.add_all(arguments, quoted=in_quotes)
        else:
            self._expand(rest.lstrip(":").removeprefix("-"), fields)

    def _item(self, value: Value | None, index: str, spelt: str) -> Value | None:
        if value is None:
            return [] if index in ("@", "*") else None
        values = as_list(value)
        if index in ("@", "*"):
            return values
        place = self._arithmetic(index)
        if place is None:
            return self._unknown(spelt, f"its place in line {self.line} is not known")
        return values[place] if -len(values) <= place < len(values) else None

    def _length(self, value: Value | None, spelt: str) -> str:
        if isinstance(value, list):
            return str(len(value))
        if value is not None and UNKNOWN.search(value):
            return self._unknown(spelt, "its length is not known")
        return str(len(value or ""))

    def _operation(
        self, name: str, value: Value | None, rest: str, spelt: str, fields: _Fields, *, in_quotes: bool
    ) -> None:
        match = _OPERATION.fullmatch(rest)
        if match is None:
            cut = self._cut(value, rest)
            if cut is None:
                fields.add(self._unknown(spelt, f"its form in line {self.line} is not followed"), quoted=True)
            else:
                fields.add(cut, quoted=in_quotes)
            return
        operator, word = match[1], match[2]
        text = " ".join(value) if isinstance(value, list) else value
        if text is not None and operator.startswith(":"):
            text = self._unset_as_empty(text)
        is_unknown = text is not None and UNKNOWN.search(text) is not None
        if operator.strip(":") in ("-", "=", "+", "?"):
            missing = text is None or (operator.startswith(":") and not text)
            if operator.endswith("+"):
                if is_unknown:
                    fields.add(self._unknown(spelt, "whether it is set is not known"), quoted=True)
                elif not missing:
                    self._expand_in(word, fields, in_quotes=in_quotes)
            elif is_unknown or not missing:
                if isinstance(value, list):
                    fields.add_all(value, quoted=in_quotes)
                else:
                    fields.add(text or "", quoted=in_quotes)
            elif operator.endswith("?"):
                fields.add(self._unknown(spelt, NOT_SET), quoted=True)
            else:
                self._expand_in(word, fields, in_quotes=in_quotes)
                if operator.endswith("="):
                    self._set(name, " ".join(self._words(word, split=False)))
            return
        pattern = " ".join(self._words(word, split=False))
        changed = None if text is None or is_unknown or UNKNOWN.search(pattern) else _trimmed(text, operator, pattern)
        if changed is None:
            fields.add(self._unknown(spelt, f"its form in line {self.line} is not followed"), quoted=True)
        else:
            fields.add(changed, quoted=in_quotes)

    def _cut(self, value: Value | None, rest: str) -> str | None:
        """${name:first:length}; None where that is not what `rest` says, or it is not known."""
        match = _CUT.fullmatch(rest)
        if match is None or isinstance(value, list) or (value is not None and UNKNOWN.search(value)):
            return None
        text = value or ""
        first, length = self._arithmetic(match[1]), len(text) if match[2] is None else self._arithmetic(match[2])
        if first is None or length is None:
            return None
        first = max(0, first + len(text)) if first < 0 else first
        return text[first : length if length < 0 else first + length]

    def _expand_in(self, word: str, fields: _Fields, *, in_quotes: bool) -> None:
        if in_quotes:
            fields.add(" ".join(self._words(word, split=False)), quoted=True)
        else:
            for piece in self._words(word, split=False):
                fields.add(piece, quoted=False)

    def _arithmetic(self, text: str) -> int | None:
        """None: it needs what is not known."""
        why = f"the arithmetic in line {self.line} needs what is not known"
        text = " ".join(self._words(text.replace('"', ""), split=False)) if "$" in text else text
        if UNKNOWN.search(text):
            for name in arithmetic.assigned_in(text):
                self._set(name, self._unknown(f"${name}", why))
            return None

        def lookup(name: str) -> int | None:
            value = self._lookup(name)
            value = (value[0] if value else "") if isinstance(value, list) else value
            return 0 if not value else _whole(value)

        value, changes = arithmetic.evaluate(text, lookup)
        for name, number in changes.items():
            self._set(name, self._unknown(f"${name}", why) if number is None else str(number))
        return value

    def known_text(self, word: str) -> str | None:
        """The value of a word in a condition; None where it is not known. A variable that is not set is empty."""
        value = self._unset_as_empty(" ".join(self._words(word, split=False)))
        return None if UNKNOWN.search(value) else value

    def whole(self, word: str) -> int | None:
        value = self.known_text(word)
        return None if value is None else _whole(value) if value else 0


class _Fields:
    """The words that one word of the text becomes."""

    def __init__(self, split: bool) -> None:
        self._split = split
        self._words: list[str] = []
        self._current: str | None = None
        self._is_gone = False
        """There was a quoted list without items, which is no word, while an empty text would be one."""

    def add(self, text: str, *, quoted: bool) -> None:
        if quoted or not self._split:
            self._current = (self._current or "") + text
            return
        pieces = text.split()
        if text[:1].isspace() or not text:
            self._end() if text else None
        for i, piece in enumerate(pieces):
            if i:
                self._end()
            self._current = (self._current or "") + piece
        if pieces and text[-1:].isspace():
            self._end()

    def add_all(self, values: Sequence[str], *, quoted: bool) -> None:
        """Each a word of its own, as "$@" and "${array[@]}"."""
        for i, value in enumerate(values):
            if i and self._split:
                self._end()
            elif i:
                self.add(" ", quoted=True)
            self.add(value, quoted=quoted)
        self._is_gone = not values

    def finish(self) -> list[str]:
        self._end()
        return self._words

    def _end(self) -> None:
        if self._current is not None and not (self._is_gone and not self._current):
            self._words.append(self._current)
        self._current, self._is_gone = None, False


def as_list(value: Value) -> list[str]:
    return value if isinstance(value, list) else [value]


def _whole(text: str) -> int | None:
    text = text.strip()
    return int(text) if re.fullmatch(r"[-+]?[0-9]{1,18}", text) else None


def matches(value: str, pattern: str) -> bool:
    return value == pattern or (
        len(value) <= _LONGEST_MATCHED and len(pattern) <= _LONGEST_MATCHED and fnmatchcase(value, pattern)
    )


def _trimmed(text: str, operator: str, pattern: str) -> str | None:
    """${name%suffix}, ${name#prefix}, ${name/old/new}; None for what is not followed."""
    if len(text) > _LONGEST_MATCHED or len(pattern) > _LONGEST_MATCHED:
        return None
    if operator in ("/", "//"):
        old, _, new = pattern.partition("/")
        if not old or any(sign in old for sign in "*?[\\#%"):
            return None
        return text.replace(old, new, -1 if operator == "//" else 1)
    at_end = operator.startswith("%")
    lengths = range(len(text) + 1)
    for length in lengths if len(operator) == 1 else reversed(lengths):
        piece = text[len(text) - length :] if at_end else text[:length]
        if fnmatchcase(piece, pattern):
            return text[: len(text) - length] if at_end else text[length:]
    return text
