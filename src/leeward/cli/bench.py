"""`leeward bench`."""

import os
from collections.abc import Generator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from leeward.backtest.wording import percent, span
from leeward.cli.view import say
from leeward.config.load import load_config
from leeward.market import prepare
from leeward.training.bench import GAIN, PARTS, Shape, Timing, bench

__all__ = ["bench_command"]


def bench_command(config: Path | None, settings: list[str], seconds: float) -> None:
    """Print steps per second here, where the time goes, and which shape was the fastest."""
    console, loaded = Console(), load_config(config, settings)
    market = None if loaded.gym is not None else prepare(loaded.data)
    found, whole = _found(console, bench(loaded, market, seconds))
    own, best = found[0], max(found, key=lambda timing: timing.steps_per_second)
    say(console, f"{_words(own.shape)}, as configured, {os.cpu_count()} cores: {own.steps_per_second:,.0f} steps/s")
    total = loaded.ppo.total_steps
    say(console, f"{total:,} steps take {span(total / own.steps_per_second)}, without scores, checkpoints and report.")
    if loaded.ppo.n_jobs > 1:
        say(console, f"In one process: ppo.n_jobs {loaded.ppo.n_jobs} is left out here.")
    console.print(_where(own))
    console.print(_others(found))
    if not whole:
        say(console, f"Not everything was tried in {seconds:g} s; --seconds {4 * seconds:g} tries more.")
    if len(found) == 1:
        say(console, "No other shape was timed: whether one is faster is not known.")
        return
    if best.steps_per_second <= GAIN * own.steps_per_second:
        say(console, f"Nothing that was tried gains more than {percent(GAIN - 1.0, 0)}: yours is a good choice.")
        return
    say(console, f"Fastest: {_words(best.shape)}, {best.steps_per_second / own.steps_per_second:.2f} times as fast.")
    say(console, _how_to(own.shape, best.shape))


def _found(console: Console, tried: Generator[Timing, None, bool]) -> tuple[list[Timing], bool]:
    """All that was timed, and whether nothing was left out for want of time; the last one is shown meanwhile."""
    found: list[Timing] = []
    with console.status("bench: as configured ...") as status:
        while True:
            try:
                found.append(next(tried))
            except StopIteration as end:
                return found, end.value
            status.update(f"bench: {_words(found[-1].shape)}: {found[-1].steps_per_second:,.0f} steps/s ...")


def _words(shape: Shape) -> str:
    batch = "the whole rollout" if shape.batch_size is None else f"{shape.batch_size:,}"
    threads = f"{shape.threads} thread" + ("" if shape.threads == 1 else "s")
    return f"{shape.n_envs} envs × {shape.n_steps} steps, minibatches of {batch}, {threads}"


def _where(own: Timing) -> Table:
    table = Table(title=f"Where a round of {1e3 * own.seconds:,.0f} ms goes", title_justify="left")
    table.add_column("part")
    table.add_column("ms", justify="right")
    table.add_column("share", justify="right")
    for part in PARTS:
        table.add_row(part, f"{1e3 * own.parts[part]:,.1f}", percent(own.parts[part] / own.seconds, 0))
    return table


def _others(found: list[Timing]) -> Table:
    table = Table(title="The same number of steps a rollout, in other shapes", title_justify="left")
    for name in ("envs", "steps", "minibatch", "threads", "steps/s", "× yours"):
        table.add_column(name, justify="right")
    for timing in found:
        shape, ratio = timing.shape, timing.steps_per_second / found[0].steps_per_second
        batch = "all" if shape.batch_size is None else f"{shape.batch_size:,}"
        numbers = (f"{shape.n_envs:,}", f"{shape.n_steps:,}", batch, str(shape.threads))
        table.add_row(*numbers, f"{timing.steps_per_second:,.0f}", f"{ratio:.2f}")
    return table


def _how_to(own: Shape, best: Shape) -> str:
    """The settings that make the difference, and what to mind about them."""
    keys = [
        f"--set ppo.{name}={getattr(best, name)}"
        for name in ("n_envs", "n_steps", "batch_size")
        if getattr(best, name) != getattr(own, name)
    ]
    words = [f"Add {' '.join(keys)} at the end of your own `leeward train` command."] if keys else []
    if best.threads != own.threads:
        words.append(f"Threads: OMP_NUM_THREADS={best.threads}.")
    if best.batch_size != own.batch_size:
        words.append("Another size of minibatches is another number of optimiser steps: see that it learns as well.")
    if best.n_envs != own.n_envs:
        words.append(
            "Shorter or longer rollouts of each env change how far advantages look: see that it learns as well."
        )
    return " ".join(words)
