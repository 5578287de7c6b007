"""Single values of a text change; comments, order and the rest stay as they are."""

from __future__ import annotations

from typing import Any

import pytest

from vramcast.jobs.editing.shell_text import edit_script, edit_words
from vramcast.jobs.editing.toml_text import edit_toml
from vramcast.jobs.editing.yaml_text import edit_json, edit_yaml
from vramcast.jobs.readers.hf_script import training_command

_SCRIPT = """\
BATCH=8  # of each GPU
N=2
torchrun --nproc_per_node $N run_clm.py \\
    --model_name_or_path m --per_device_train_batch_size "$BATCH" \\
    --bf16 \\
    --gradient_accumulation_steps $N 2>&1 | tee log
echo done
"""


@pytest.mark.parametrize(
    ("text", "key", "value", "after"),
    [
        ("a: 1  # x\nb: 2\n", "a", 3, "a: 3  # x\nb: 2\n"),
        ("a:\nb: 2\n", "a", 3, "a: 3\nb: 2\n"),
        ("a: 1", "b", "all", "a: 1\nb: all\n"),
        ("s: {a: 1}  # x\n", "s.b", 2, "s: {a: 1, b: 2}  # x\n"),
        ("s: {}\n", "s.b", 2, "s: {b: 2}\n"),
        ("s:\n  a: 1  # x\nt: 2\n", "s.b", 2, "s:\n  a: 1  # x\n  b: 2\nt: 2\n"),
        ("s:\n  a:\n    c: 1\nt: 2\n", "s.b", 2, "s:\n  a:\n    c: 1\n  b: 2\nt: 2\n"),
        ("s:\n  a: 1\n\nt: 2\n", "s", "x", "s: x\n\nt: 2\n"),
        ("t: 2\n", "s.b.c", 2, "t: 2\ns: {b: {c: 2}}\n"),
        ("mixed_precision: bf16\n", "mixed_precision", "no", "mixed_precision: 'no'\n"),
        ("gpus: 4\n", "gpus.count", 2, "gpus: 4\n"),
    ],
)
def test_yaml(text: str, key: str, value: Any, after: str) -> None:
    assert edit_yaml(text, {tuple(key.split(".")): value}) == after


@pytest.mark.parametrize(
    ("text", "key", "value", "after"),
    [
        ('{"a": 1, "b": 2}', "a", True, '{"a": true, "b": 2}'),
        ('{"a":1}', "b", "x", '{"a":1, "b": "x"}'),
        ("{}", "a", 1, '{"a": 1}'),
        ('{\n\t"a": 1 // one\n}\n', "b", 2, '{\n\t"a": 1, // one\n\t"b": 2\n}\n'),
        (
            '{\n  "a": 1 // one\n  , "s": {"b": "//no comment"} // s\n}\n',
            "c",
            [0, 1],
            '{\n  "a": 1 // one\n  , "s": {"b": "//no comment"} // s\n  , "c": [0, 1]\n}\n',
        ),
        ('{\n  "s": {\n    "b": 1 // of all\n  }\n}', "s.b", 4, '{\n  "s": {\n    "b": 4 // of all\n  }\n}'),
    ],
)
def test_json(text: str, key: str, value: Any, after: str) -> None:
    assert edit_json(text, {tuple(key.split(".")): value}) == after


@pytest.mark.parametrize(
    ("key", "value", "after"),
    [
        ("t.a", 2, '[t]  # first\na = 2  # one\nb = "x # y"\n\n[u]\na = 3\n'),
        ("t.b", "z", '[t]  # first\na = 1  # one\nb = "z"\n\n[u]\na = 3\n'),
        ("t.c", True, '[t]  # first\na = 1  # one\nb = "x # y"\nc = true\n\n[u]\na = 3\n'),
        ("v.a", 1, '[t]  # first\na = 1  # one\nb = "x # y"\n\n[u]\na = 3\n\n[v]\na = 1\n'),
    ],
)
def test_toml(key: str, value: Any, after: str) -> None:
    text = '[t]  # first\na = 1  # one\nb = "x # y"\n\n[u]\na = 3\n'
    assert edit_toml(text, {tuple(key.split(".")): value}) == after


@pytest.mark.parametrize(
    ("flags", "old", "new"),
    [
        ({"per_device_train_batch_size": 2}, "BATCH=8", "BATCH=2"),
        # Another flag has its value from the same variable.
        ({"gradient_accumulation_steps": 4}, "steps $N", "steps 4"),
        ({"bf16": False}, "--bf16 \\", "--bf16 False \\"),
        ({"bf16": True}, "", ""),
        ({"optim": "sgd"}, '"$BATCH" \\', '"$BATCH" --optim sgd \\'),
    ],
)
def test_a_shell_script(flags: dict[str, Any], old: str, new: str) -> None:
    command = training_command(_SCRIPT, "train.sh")
    found = edit_script(_SCRIPT, command, flags, {}, ("per_device_train_batch_size",))
    assert found == _SCRIPT.replace(old, new)


def test_a_new_flag_takes_a_line_where_the_others_have_one() -> None:
    found = edit_script(_SCRIPT, training_command(_SCRIPT, "x"), {"optim": "sgd"}, {"A": "b:c"}, ("bf16",))
    assert "    --bf16 \\\n    --optim sgd \\\n    --gradient" in found
    assert "\nexport A=b:c\ntorchrun" in found
    again = edit_script(found, training_command(found, "x"), {}, {"A": "d"}, ("bf16",))
    assert again == found.replace("A=b:c", "A=d")


def test_words() -> None:
    words = ["torchrun", "a.py", "--x=1", "--y", "2", "--z"]
    assert edit_words(words, {"x": 3, "y": 4, "z": False, "w": True}, {"V": "1"}) == [
        "V=1", "torchrun", "a.py", "--x=3", "--y", "4", "--z", "False", "--w", "True",
    ]  # fmt: skip
