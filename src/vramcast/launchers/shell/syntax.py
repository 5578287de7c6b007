"""The text of a shell script as commands: lists, conditions, loops, functions. Words keep their quotes and `$`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn

from vramcast.base.errors import UsageError

_DEEPEST = 30
_MOST_TOKENS = 100_000
_OPERATORS = (
    ";;&", "&>>", "<<<", "<<-", ";;", ";&", "&&", "||", "|&", "&>", "<<", "<&", ">&", ">>", ">|", "<>",
    ";", "&", "|", "<", ">", "(", ")", "\n",
)  # fmt: skip
_REDIRECTIONS = frozenset(("&>>", "<<<", "<<-", "&>", "<<", "<&", ">&", ">>", ">|", "<>", "<", ">"))
_ENDS_A_WORD = frozenset(" \t\n;&|<>()")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_FUNCTION_NAME = re.compile(r"[\w.:-]+")
_RESERVED_ENDS = frozenset(("then", "elif", "else", "fi", "do", "done", "esac", "}"))


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    """word, array, operator, end"""
    text: str
    """For an array, what stands before the parenthesis: NAME= or NAME+=."""
    line: int
    last_line: int
    items: tuple[str, ...] = ()
    """The items of an array."""


@dataclass(frozen=True, slots=True)
class Simple:
    words: tuple[Token, ...]
    line: int
    last_line: int


@dataclass(frozen=True, slots=True)
class Arithmetic:
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Test:
    """[[ ... ]]"""

    words: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class AndOr:
    first: Node
    rest: tuple[tuple[str, Node], ...]
    """&& or ||, and what comes after it."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    parts: tuple[Node, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Group:
    body: Body
    is_subshell: bool


@dataclass(frozen=True, slots=True)
class If:
    branches: tuple[tuple[Body, Body], ...]
    otherwise: Body
    line: int


@dataclass(frozen=True, slots=True)
class Loop:
    kind: str
    """while, until, for"""
    condition: Body
    body: Body
    line: int
    variable: str = ""
    items: tuple[str, ...] | None = None
    """None: the arguments of the script, or a loop that counts."""


@dataclass(frozen=True, slots=True)
class Case:
    word: str
    branches: tuple[tuple[tuple[str, ...], Body], ...]
    line: int


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    body: Node


Node = Simple | Arithmetic | Test | AndOr | Pipeline | Group | If | Loop | Case | Function
Body = tuple[Node, ...]


def parse(text: str, where: str, first_line: int = 1) -> Body:
    """UsageError names the line of what is no shell command."""
    try:
        parser = _Parser(_Scanner(text.replace("\r\n", "\n"), where, first_line), where)
        body = parser.body(())
        parser.expect_end()
    except RecursionError:
        raise UsageError(f"{where}: nested too deeply") from None
    return body


def closing(text: str, at: int, opening: str, ending: str) -> int:
    """Just behind the sign that closes the bracket before `at`, -1 where there is none; quotes and brackets of the same
    kind inside are stepped over."""
    depth = 1
    while at < len(text):
        sign = text[at]
        if sign == "\\":
            at += 2
            continue
        if sign in "'\"`":
            at = _quoted_end(text, at)
            if at < 0:
                return -1
            continue
        if sign == opening:
            depth += 1
        elif sign == ending:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return -1


def _quoted_end(text: str, at: int) -> int:
    """Just behind the quoted piece that begins at `at`, -1 where it does not end."""
    quote = text[at]
    at += 1
    if quote == "'":
        return text.find("'", at) + 1 or -1
    while 0 <= at < len(text):
        if text[at] == "\\":
            at += 2
        elif text[at] == quote:
            return at + 1
        elif quote == '"' and text[at] == "$" and text[at + 1 : at + 2] in ("(", "{"):
            at = closing(text, at + 2, text[at + 1], ")" if text[at + 1] == "(" else "}")
        else:
            at += 1
    return -1


@dataclass(slots=True)
class _Scanner:
    text: str
    where: str
    line: int
    at: int = 0
    count: int = 0
    here_documents: list[tuple[str, bool]] = field(default_factory=list)

    def next(self) -> Token:
        self.count += 1
        if self.count > _MOST_TOKENS:
            raise UsageError(f"{self.where}:{self.line}: more than {_MOST_TOKENS:,} words are not read")
        self._skip_blanks()
        line = self.line
        if self.at >= len(self.text):
            return Token("end", "", line, line)
        operator = self._operator()
        if operator is not None:
            return Token("operator", operator, line, line)
        return self._word()

    def fail(self, line: int, what: str) -> NoReturn:
        raise UsageError(f"{self.where}:{line}: not a shell command: {what}")

    def arithmetic(self) -> str:
        """What stands up to )), for a (( whose first sign was taken already."""
        end = closing(self.text, self.at + 1, "(", ")")
        if end < 0 or self.text[end : end + 1] != ")":
            self.fail(self.line, "no closing ))")
        inside = self.text[self.at + 1 : end - 1]
        self._move(end + 1)
        return inside

    def here_document(self, word: str, *, strip_tabs: bool) -> None:
        self.here_documents.append((re.sub(r"[\"'\\]", "", word), strip_tabs))

    def _move(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def _skip_blanks(self) -> None:
        text = self.text
        while self.at < len(text):
            if text[self.at] in " \t\r":
                self.at += 1
            elif text.startswith("\\\n", self.at):
                self._move(self.at + 2)
            elif text[self.at] == "#":
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
            else:
                return

    def _operator(self) -> str | None:
        if self.text[self.at] not in ";&|<>()\n":
            return None
        if self.text[self.at : self.at + 2] in ("<(", ">("):
            return None
        operator = next(candidate for candidate in _OPERATORS if self.text.startswith(candidate, self.at))
        self._move(self.at + len(operator))
        if operator == "\n":
            self._skip_here_documents()
        return operator

    def _skip_here_documents(self) -> None:
        for end_word, strip_tabs in self.here_documents:
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                row = self.text[self.at : end]
                self._move(min(end + 1, len(self.text)))
                if (row.lstrip("\t") if strip_tabs else row) == end_word:
                    break
        self.here_documents.clear()

    def _word(self) -> Token:
        text, start, line = self.text, self.at, self.line
        at = start
        while at < len(text):
            sign = text[at]
            if sign in "<>" and text[at + 1 : at + 2] == "(" and at == start:
                at = self._closed(closing(text, at + 2, "(", ")"), at)
            elif sign in _ENDS_A_WORD:
                break
            elif sign == "\\":
                at += 2
            elif sign in "'\"`":
                at = self._closed(_quoted_end(text, at), at)
            elif sign == "$" and text[at + 1 : at + 2] in ("(", "{"):
                opening = text[at + 1]
                at = self._closed(closing(text, at + 2, opening, ")" if opening == "(" else "}"), at)
            else:
                at += 1
        at = min(at, len(text))
        word = text[start:at]
        self._move(at)
        if text[at : at + 1] == "(" and _ARRAY.fullmatch(word):
            return self._array(word, line)
        if word.isdigit() and text[at : at + 1] in ("<", ">") and at < len(text):
            return self.next()  # 2> log: the number of what is redirected
        return Token("word", word, line, self.line)

    def _array(self, before: str, line: int) -> Token:
        self.at += 1
        items: list[str] = []
        while True:
            token = self.next()
            if token.kind == "end":
                self.fail(line, "no closing ) of an array")
            if token.kind == "operator" and token.text == ")":
                return Token("array", before, line, self.line, tuple(items))
            if token.kind == "operator" and token.text != "\n":
                self.fail(token.line, f"{token.text!r} inside an array")
            if token.kind == "word":
                items.append(token.text)

    def _closed(self, at: int, begin: int) -> int:
        if at < 0:
            self.fail(self.line + self.text.count("\n", self.at, begin), f"no closing of {self.text[begin]}")
        return at


class _Parser:
    def __init__(self, scanner: _Scanner, where: str) -> None:
        self._scanner = scanner
        self._where = where
        self._token = scanner.next()
        self._depth = 0

    def expect_end(self) -> None:
        if self._token.kind != "end":
            self._scanner.fail(self._token.line, f"{self._token.text[:20]!r} does not belong here")

    def body(self, ends: tuple[str, ...]) -> Body:
        """Commands up to one of these words or operators, which is left to the caller."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UsageError(f"{self._where}:{self._token.line}: nested too deeply")
        nodes: list[Node] = []
        while True:
            while self._is_operator("\n", ";", "&"):
                self._advance()
            if self._token.kind == "end" or self._token.text in ends or self._is_operator(")", ";;", ";&", ";;&"):
                break
            if self._token.text in _RESERVED_ENDS:
                self._scanner.fail(self._token.line, f"{self._token.text!r} does not belong here")
            nodes.append(self._and_or())
        self._depth -= 1
        return tuple(nodes)

    def _advance(self) -> Token:
        token, self._token = self._token, self._scanner.next()
        return token

    def _is_operator(self, *texts: str) -> bool:
        return self._token.kind == "operator" and self._token.text in texts

    def _is_word(self, *texts: str) -> bool:
        return self._token.kind == "word" and self._token.text in texts

    def _take(self, text: str) -> Token:
        if self._token.text != text:
            shown = self._token.text[:20] if self._token.kind != "end" else "the end"
            self._scanner.fail(self._token.line, f"{text!r} is needed, not {shown!r}")
        return self._advance()

    def _skip_lines(self) -> None:
        while self._is_operator("\n"):
            self._advance()

    def _and_or(self) -> Node:
        first = self._pipeline()
        rest: list[tuple[str, Node]] = []
        while self._is_operator("&&", "||"):
            operator = self._advance().text
            self._skip_lines()
            rest.append((operator, self._pipeline()))
        return AndOr(first, tuple(rest)) if rest else first

    def _pipeline(self) -> Node:
        negated = False
        while self._is_word("!"):
            self._advance()
            negated = not negated
        parts = [self._command()]
        while self._is_operator("|", "|&"):
            self._advance()
            self._skip_lines()
            parts.append(self._command())
        return Pipeline(tuple(parts), negated) if negated or len(parts) > 1 else parts[0]

    def _command(self) -> Node:
        token = self._token
        if self._is_operator("("):
            if self._scanner.text[self._scanner.at : self._scanner.at + 1] == "(":
                return self._arithmetic()
            self._advance()
            node: Node = Group(self.body((")",)), is_subshell=True)
            self._take(")")
        elif self._is_word("{"):
            self._advance()
            node = Group(self.body(("}",)), is_subshell=False)
            self._take("}")
        elif self._is_word("if"):
            node = self._if()
        elif self._is_word("while", "until"):
            node = self._while()
        elif self._is_word("for", "select"):
            node = self._for()
        elif self._is_word("case"):
            node = self._case()
        elif self._is_word("[["):
            node = self._test()
        elif self._is_word("function"):
            self._advance()
            return self._function(self._advance().text)
        else:
            return self._simple(token)
        self._redirections()
        return node

    def _arithmetic(self) -> Arithmetic:
        line = self._token.line
        text = self._scanner.arithmetic()
        self._token = self._scanner.next()
        return Arithmetic(text, line)

    def _simple(self, first: Token) -> Node:
        words: list[Token] = []
        last_line = first.line
        while True:
            if self._token.kind in ("word", "array"):
                token = self._advance()
                last_line = max(last_line, token.last_line)
                if not words and self._is_operator("(") and _FUNCTION_NAME.fullmatch(token.text):
                    return self._function(token.text)
                words.append(token)
            elif not self._redirection():
                break
        if not words and self._token is first:
            self._scanner.fail(first.line, f"{first.text!r} does not belong here")
        return Simple(tuple(words), first.line, last_line)

    def _redirection(self) -> bool:
        if self._token.kind != "operator" or self._token.text not in _REDIRECTIONS:
            return False
        operator = self._advance()
        if self._token.kind != "word":
            self._scanner.fail(operator.line, f"{operator.text} needs a file")
        if operator.text in ("<<", "<<-"):
            self._scanner.here_document(self._token.text, strip_tabs=operator.text == "<<-")
        self._advance()
        return True

    def _redirections(self) -> None:
        while self._redirection():
            pass

    def _function(self, name: str) -> Function:
        if self._is_operator("("):
            self._advance()
            self._take(")")
        self._skip_lines()
        return Function(name, self._command())

    def _if(self) -> If:
        line = self._advance().line
        branches: list[tuple[Body, Body]] = []
        while True:
            condition = self.body(("then",))
            self._take("then")
            branches.append((condition, self.body(("elif", "else", "fi"))))
            if not self._is_word("elif"):
                break
            self._advance()
        otherwise: Body = ()
        if self._is_word("else"):
            self._advance()
            otherwise = self.body(("fi",))
        self._take("fi")
        return If(tuple(branches), otherwise, line)

    def _while(self) -> Loop:
        token = self._advance()
        condition = self.body(("do",))
        return Loop(token.text, condition, self._loop_body(), token.line)

    def _loop_body(self) -> Body:
        self._take("do")
        body = self.body(("done",))
        self._take("done")
        return body

    def _for(self) -> Loop:
        line = self._advance().line
        if self._is_operator("("):
            head = self._arithmetic().text
            variable = head.partition("=")[0].strip()
            return Loop("for", (), self._rest_of_for(), line, variable)
        variable = self._advance().text
        self._skip_lines()
        if not self._is_word("in"):
            return Loop("for", (), self._rest_of_for(), line, variable)
        self._advance()
        items: list[str] = []
        while self._token.kind == "word":
            items.append(self._advance().text)
        return Loop("for", (), self._rest_of_for(), line, variable, tuple(items))

    def _rest_of_for(self) -> Body:
        while self._is_operator("\n", ";"):
            self._advance()
        return self._loop_body()

    def _case(self) -> Case:
        line = self._advance().line
        word = self._advance().text
        self._skip_lines()
        self._take("in")
        branches: list[tuple[tuple[str, ...], Body]] = []
        while True:
            self._skip_lines()
            if self._is_word("esac"):
                self._advance()
                return Case(word, tuple(branches), line)
            if self._is_operator("("):
                self._advance()
            patterns = [self._advance().text]
            while self._is_operator("|"):
                self._advance()
                patterns.append(self._advance().text)
            self._take(")")
            branches.append((tuple(patterns), self.body(("esac",))))
            if self._is_operator(";;", ";&", ";;&"):
                self._advance()
            elif not self._is_word("esac"):
                self._scanner.fail(self._token.line, "'esac' is needed")

    def _test(self) -> Test:
        line = self._advance().line
        words: list[str] = []
        while not self._is_word("]]"):
            if self._token.kind == "end":
                self._scanner.fail(line, "no closing ]]")
            token = self._advance()
            if token.text != "\n":
                words.append(token.text)
        self._advance()
        return Test(tuple(words), line)
