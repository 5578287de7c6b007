"""Shell scripts are followed without a shell: to the words that bash would hand over, or to why nobody can know."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from vramcast.cli.main import main
from vramcast.errors import UsageError
from vramcast.jobs.load import load_job
from vramcast.jobs.readers.hf_script import training_command
from vramcast.launchers.shell import follow

MODEL = str(Path(__file__).parent / "configs" / "llama-tiny")

DECIDED = {
    "array": 'A=(--bs 4 --x "a b")\nA+=(--y)\nA[1]=5\npython t.py "${A[@]}" --n ${#A[@]} ${A[1]} ${A[-1]}',
    "array over lines": "A=(\n  --bs 4 # why\n  --lr 1e-4\n)\npython t.py ${A[@]}",
    "empty array": 'A=()\npython t.py "${A[@]}" end',
    "declare": "declare -i B=64\nreadonly D=5\ntypeset E=6\nexport F=7 G=8\npython t.py $B $D $E $F $G",
    "arithmetic": "((B=64))\n((B*=2))\n((B++))\nlet C=B+1\npython t.py $B $C $((B*C)) $((B>2?1:0)) $((2**5-7%4))",
    "arithmetic of variables": 'N=8\nM=$((N / 2))\npython t.py $M $(( ${N} * "$M" )) $((016)) $((0x1f))',
    "if else": 'M=big\nif [[ $M == b* ]]; then\n B=4\nelif [ $M = small ]; then B=8\nelse B=9\nfi\npython t.py $B',
    "unset is empty in a condition": 'if [ -z "$NONE_SUCH" ]; then B=4; else B=8; fi\npython t.py $B',
    "numbers compared": 'N=4\nif [ "$N" -gt 2 ] && [ $N -lt 8 ]; then B=1; else B=2; fi\npython t.py $B',
    "and, or, not": 'A=1; if [[ ( $A == 1 || $A == 2 ) && ! $A == 3 ]]; then B=x; fi\npython t.py $B',
    "short conditions": '[ -z "$NONE_SUCH" ] && B=4\n[ -n "$B" ] || B=5\npython t.py $B',
    "defaults": ': ${C:=5}\npython t.py $C ${D:-6} ${E:+7} ${C:+8} "${D:-a b}" ${D:-a b}',
    "words of a variable": 'ARGS="--a 1  --b 2"\npython t.py $ARGS "$ARGS" x$ARGS',
    "lists and pipes": "true && python t.py --a 1 | cat; echo done >/dev/null",
    "redirections": "python t.py --a 1 2>/dev/null --b 2 </dev/null\npython t.py &>/dev/null",
    "function": 'train() { local b=$1; shift; python t.py --bs $b "$@"; }\ntrain 4 "5 6"\nfunction go { train 7; }\ngo',
    "slice of the arguments": 'f() { python t.py "${@:2}" $#; }\nf 1 2 3',
    "one turn of a loop": "for b in 8; do python t.py --bs $b; done",
    "arguments are parsed": "B=4\nwhile [[ $# -gt 0 ]]; do case $1 in -b) B=$2;; esac; shift; done\npython t.py $B",
    "case": "M=7b\ncase $M in 7b|8b) B=1;; *) B=2;; esac\npython t.py $B",
    "case with a default": 'case "$NONE_SUCH" in a) B=1;; "") B=2;; *) B=3;; esac\npython t.py $B',
    "here-document": "cat >/dev/null <<EOF\npython no.py 'x\nEOF\npython t.py",
    "here-document with tabs": "cat >/dev/null <<-'END'\n\tpython no.py\n\tEND\npython t.py",
    "here-string": 'cat >/dev/null <<< "a b"\npython t.py <<< x',
    "no arguments": 'python t.py "$@" $* ${1:-4}',
    "eval": 'CMD="python t.py --bs 4"\neval $CMD --x 1\neval "$CMD"',
    "subshell": "B=2; (B=3; python t.py $B); { B=5; }; python t.py $B",
    "trimmed": "F=model/llama.json\npython t.py ${F##*/} ${F%.json} ${F/llama/gpt} ${F#*/} ${#F}",
    "quotes": """python t.py --json '{"a": 1}' "x'y" a\\ b "\\$x" 'a'"b"c\\"d""",
    "continued lines": "python \\\n  t.py \\\n  --a 1\npython t.py --b",
    "assignment in front": "B=1\nB=2 python t.py $B\npython t.py $B",
    "appended": "B=8\nB+=4\npython t.py $B",
    "set arguments": "set -- --a 1\npython t.py $# $1",
    "comment": "python t.py a#b # c\n# python t.py",
    "unset": "B=4\nunset B\npython t.py ${B:-5}",
    "else of a question": "if false; then B=1; else B=2; fi\npython t.py $B",
    "negated": 'if ! [ "$A" = x ]; then B=1; fi\nif [ ! "$A" = x ]; then C=2; fi\npython t.py $B $C',
}  # fmt: skip


def _from_bash(text: str) -> list[list[str]]:
    shown = 'python() { printf "%s\\0" "$@" >&3; printf "\\n\\0" >&3; }\n'
    command = ["bash", "-c", f"exec 3>&1 1>/dev/null\n{shown}{text}"]
    done = subprocess.run(command, capture_output=True, timeout=20, check=True, env={"PATH": "/usr/bin:/bin"})
    commands: list[list[str]] = [[]]
    for word in done.stdout.decode().split("\0")[:-1]:
        if word == "\n":
            commands.append([])
        else:
            commands[-1].append(word)
    return commands[:-1]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash says what is right")
@pytest.mark.parametrize("name", DECIDED)
def test_the_words_are_those_that_bash_hands_over(name: str) -> None:
    followed = follow(DECIDED[name], "x.sh")
    found = [command for command in followed.commands if command.words[0] == "python"]
    assert [command.words[1:] for command in found] == _from_bash(DECIDED[name])
    assert all(not command.unknown for command in found)


@pytest.mark.parametrize(
    ("before", "value", "why"),
    [
        ("if [ -f model.bin ]; then B=4; else B=8; fi", "$B", "condition in line 1"),
        ("if nvidia-smi; then B=4; fi", "$B", "condition in line 1"),
        ("B=2\n[ -d x ] && B=4", "$B", "condition in line 2"),
        ('case "$HOSTNAME" in a*) B=1;; *) B=2;; esac', "$B", "condition in line 1"),
        ("for B in 1 2 4; do true; done", "$B", "in line 1"),
        ("B=1\nwhile true; do ((B*=2)); done", "$B", "in line 2"),
        ("B=$(nproc)", "$(nproc)", "a program prints (line 1)"),
        ("B=`nproc`", "`nproc`", "a program prints"),
        ("N=$(nproc)\nB=$((N/2))", "$((N/2))", "arithmetic in line 2"),
        ("read -r B", "$B", "read in line 1"),
        ("source ./sizes.sh\nB=${B:-4}", "$B", "./sizes.sh"),
        ("B=$SLURM_NTASKS", "$SLURM_NTASKS", "whoever starts"),
        ("B=$1", "$1", "not set in the script"),
        ("", "$B", "not set in the script"),
        ("A=4\nB=${!A}", "${!A}", "a running shell"),
        ("B=$((1/0))", "$((1/0))", "arithmetic in line 1"),
        ("B=$((9223372036854775807+1))", "$((9223372036854775807+1))", "arithmetic"),
    ],
)
def test_what_cannot_be_decided_is_refused(before: str, value: str, why: str, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f"{before}\npython run_clm.py --model_name_or_path '{MODEL}' --per_device_train_batch_size $B\n")
    with pytest.raises(UsageError) as caught:
        load_job(str(script))
    for part in (f"train.sh:{before.count(chr(10)) + 2}", "--per_device_train_batch_size", value, why):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "batch"),
    [
        ('ARGS=(--per_device_train_batch_size 3 --bf16)\npython run_clm.py --model_name_or_path MODEL "${ARGS[@]}"', 3),
        ("((B=64))\npython run_clm.py --model_name_or_path MODEL --per_device_train_batch_size $B", 64),
        ("declare B=5\ncd . && python run_clm.py --model_name_or_path MODEL --per_device_train_batch_size $B", 5),
        # What has no part in the prediction need not be known.
        ("for S in 1 2; do\npython a.py --model_name_or_path MODEL --per_device_train_batch_size 6 --seed $S; done", 6),
        ("python run_clm.py --model_name_or_path MODEL --per_device_train_batch_size 7 --output_dir $(date +%s)", 7),
    ],
)  # fmt: skip
def test_the_batch_of_a_script(text: str, batch: int, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(text.replace("MODEL", shlex.quote(MODEL)))
    assert load_job(str(script)).job.sizes["batch"] == batch


def test_what_is_assumed_is_said(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        f'python run_clm.py --model_name_or_path "{MODEL}" --per_device_train_batch_size ${{BATCH:-4}} "$@"\n'
    )
    notes = [note.text for note in load_job(str(script)).notes if note.where == str(script)]
    assert "BATCH is not set in the environment; the script is started without arguments" in notes


def test_a_script_that_ends_without_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        f"if [ $# -lt 1 ]; then\n  echo usage\n  exit 1\nfi\npython a.py --model_name_or_path '{MODEL}' --bf16\n"
    )
    assert main(["predict", str(script), "--gpu", "rtx-4090"]) == 2
    assert "before it ends in line 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A=x\n" + "A=$A$A\n" * 40, "A grows beyond"),
        ("A=(x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40, "expand to more"),
        ("A=" + "x" * 60_000 + "\n" + "echo $A\n" * 5_000, "expand to more"),
        ("f() { f; f; }\nf", "calls itself"),
        ('A=\'eval "$A"\'\neval "$A"', "too deep"),
        ("( " * 5_000, "deep"),
        ("if true; then " * 5_000, "deep"),
        ("echo " + "$(" * 50_000, "no closing"),
        ("A=(" * 50_000, "deep"),
        ("function a " * 50_000, "deep"),
        ("echo " + '"${A:-' * 20_000, ""),
        ("B=$((" + "(" * 900 + "1" + ")" * 900 + "))", None),
        ("case x in", "is needed"),
        ("fi", "does not belong"),
        ("for", "is needed"),
        ("echo 'x", "no closing"),
        ("((1", "no closing"),
        ("[[ a", "no closing"),
        ("echo >", "needs a file"),
        (")", "does not belong"),
    ],
)
def test_scripts_that_grow_or_are_none(text: str, said: str | None) -> None:
    if said is None:
        follow(text, "x.sh")
        return
    with pytest.raises(UsageError, match=r"x\.sh") as caught:
        follow(text, "x.sh")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("spelt", "value"), [("$(expr 16 / $n)", "2"), ("`expr $n \\* 3 + 1`", "25"), ("$(expr 32 / ${n} / 2)", "2")]
)
def test_expr_is_worked_out(spelt: str, value: str) -> None:
    text = f"n=8\ntorchrun train.py --per_device_train_batch_size 1 --gradient_accumulation_steps {spelt}\n"
    assert training_command(text, "train.sh").words[-1] == value


def test_other_programs_are_not_run() -> None:
    text = "torchrun train.py --per_device_train_batch_size $(expr length abc)\n"
    assert "it is what a program prints (line 1)" in training_command(text, "train.sh").unknown.values()
