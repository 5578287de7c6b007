"""The account of a job as a page of text: the verdict, parameters, activations, everything else, and the cards."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from vramcast.base.language import name as named
from vramcast.base.language import say
from vramcast.base.units import format_gib, format_size
from vramcast.prediction.job_account import JobAccount
from vramcast.report.job_tables import Unit, card_rows, parameter_rows, shape_text, stage_columns
from vramcast.report.page import print_page
from vramcast.report.terminal import (
    footer,
    peak_lines,
    print_kinds,
    print_modules,
    print_notes,
    print_phases,
    table,
)
from vramcast.report.time import time_page
from vramcast.report.wording import verdict, with_margin


def print_job(account: JobAccount, console: Console) -> None:
    prediction = account.prediction
    console.print(Text(headline(account)))
    console.print(Text(verdict(prediction), style="bold green" if prediction.fits else "bold red"))
    for line in peak_lines(prediction):
        console.print(Text(line))
    console.print(Text(with_margin(prediction)))
    console.print()
    if account.parameters.count:
        print_parameters(account, console)
        console.print()
    print_stages(account, console)
    print_kinds(prediction.account.parts, prediction.account.device_bytes, console)
    print_uses(account, console)
    console.print()
    print_modules(prediction.account, console)
    console.print()
    print_phases(prediction.account, console)
    console.print()
    print_cards(account, console)
    if account.time is not None:
        console.print()
        print_page(time_page(account.time, account.throughput), console)
    print_notes(prediction.notes, console)
    console.print()
    console.print(Text(footer(prediction), style="dim"))


def headline(account: JobAccount) -> str:
    """What was recognised, and the sizes it was predicted for."""
    what = account.name
    if account.recognised_as:
        what = f"{account.name}: {account.recognised_as}, {named(account.task)}"
    sizes = ", ".join(f"{named(name)} {size:,}" for name, size in _batch_first(account.sizes))
    text = f"{what}; {sizes}" if sizes else what
    if account.samples_per_step > account.sizes.get("batch", 1):
        text += say("; {count} samples a step", count=f"{account.samples_per_step:,}")
    if account.steps_per_epoch is not None:
        text += say("; {count} steps an epoch", count=f"{account.steps_per_epoch:,}")
    return text


def _batch_first(sizes: object) -> list[tuple[str, int]]:
    assert isinstance(sizes, dict)
    return sorted(sizes.items(), key=lambda item: item[0] != "batch")


def print_parameters(account: JobAccount, console: Console) -> None:
    root = account.parameters
    unit = Unit.for_size(root.total_bytes)
    grid = table("parameters", "count", "weights", "gradients", "optimizer", f"all, {unit.name}")
    for row in parameter_rows(root):
        count, *sizes = row.values
        grid.add_row("  " * row.depth + row.label, f"{count:,}", *(unit.text(size) for size in (*sizes, sum(sizes))))
    grid.add_section()
    total = (root.weights_bytes, root.gradients_bytes, root.optimizer_bytes, root.total_bytes)
    grid.add_row("total", f"{root.count:,}", *(unit.text(size) for size in total), style="bold")
    console.print(grid)
    if root.trained_count != root.count:
        console.print(Text(f"{root.trained_count:,} of them are trained"))


_WIDEST = 1000


def print_stages(account: JobAccount, console: Console) -> None:
    found = stage_columns(account.stages)
    if not found.lines:
        return
    text = found.unit.text
    whole = table("activations", "output", *found.sizes, *found.roles, text_columns=2)
    sizes_alone = table("activations", "output", *found.sizes, text_columns=2)
    roles_alone = table(f"of it, {found.unit.name}", *found.roles)
    for line in found.lines:
        label, shape = "  " * line.row.depth + line.row.label, shape_text(line.row.path, account.output_shapes)
        sizes, roles = [text(size) for size in line.sizes], [text(size) for size in line.roles]
        whole.add_row(label, shape, *sizes, *roles)
        sizes_alone.add_row(label, shape, *sizes)
        roles_alone.add_row(label, *roles)
    wide = console.options.update(max_width=_WIDEST)
    if not found.roles or console.measure(whole, options=wide).maximum <= console.width:
        console.print(whole)
    else:
        console.print(sizes_alone, roles_alone)
    if found.roles:
        listed = ", ".join(found.roles).replace("attn", "attention")
        console.print(Text(f"{listed}: of what stays, and of what one checkpointed block makes again"))
    console.print()


def print_uses(account: JobAccount, console: Console) -> None:
    """What some of it is for, in lines of their own, and the batches that wait in the computer."""
    warp = account.stages.roles.get("warp")
    uses = {
        "flow and warps": warp.stays_bytes if warp is not None else 0,
        "outputs of stages (skips)": account.held_outputs_bytes,
    }
    lines = [(name, size) for name, size in uses.items() if size]
    if lines:
        console.print()
        unit = Unit.for_size(max(size for _, size in lines))
        grid = table("of the activations, as they stay", unit.name)
        for name, size in lines:
            grid.add_row(name, unit.text(size))
        console.print(grid)
    if account.pinned_batches:
        whole = format_size(account.pinned_batches * account.pinned_batch_bytes)
        console.print()
        console.print(Text(f"in the computer: {whole} of pinned memory, for {account.pinned_batches} batches of "
                           f"{format_size(account.pinned_batch_bytes)}"))  # fmt: skip


def print_cards(account: JobAccount, console: Console) -> None:
    cards = card_rows(account.cards)
    if not cards.shown:
        largest = cards.largest
        console.print(Text(f"none of {cards.n_known} known cards holds it; the largest, {largest.gpu.short_name}, has "
                           f"{format_gib(largest.limit_bytes, 1)}"))  # fmt: skip
        return
    grid = table("cards that hold it", "GiB", "to spare", "with margin")
    for card in cards.shown:
        spare = f"{card.headroom_bytes / 2**30:.1f}"
        grid.add_row(card.gpu.id, f"{card.limit_bytes / 2**30:.1f}", spare, "yes" if card.comfortable else "no")
    console.print(grid)
    rest = cards.n_fitting - len(cards.shown)
    if rest:
        console.print(Text(f"and {rest} larger of {cards.n_known} known (--json lists all)"))
