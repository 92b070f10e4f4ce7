"""`python -m leeward.maths`: four of the equations at work, on numbers whose true answer is known."""

import torch
from rich.console import Console
from rich.table import Table

from leeward.maths import cvar
from leeward.maths.lagrangian import dual_ascent
from leeward.maths.quantile import tail_levels, uniform_levels
from leeward.maths.returns import distributional_targets, gae

ALPHA, GAMMA = 0.05, 0.9
NORMAL = torch.distributions.Normal(torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))


def normal_cvar(alpha: float) -> float:
    """−φ(Φ⁻¹(α))/α."""
    quantile = NORMAL.icdf(torch.tensor(alpha, dtype=torch.float64))
    return -float(NORMAL.log_prob(quantile).exp()) / alpha


def grids() -> Table:
    """The tail of a normal seen by 32 quantiles, spread evenly and gathered in the tail."""
    table = Table(title="CVaR 5 % of a standard normal from 32 exact quantiles", title_justify="left")
    for heading in ("levels", "CVaR", "error"):
        table.add_column(heading, justify="left" if heading == "levels" else "right")
    exact = normal_cvar(ALPHA)
    for name, (levels, weights) in (("uniform", uniform_levels(32)), ("tail", tail_levels(32, ALPHA))):
        found = float(cvar.from_quantiles(NORMAL.icdf(levels), ALPHA, levels=levels, weights=weights))
        table.add_row(name, f"{found:.4f}", f"{abs(found / exact - 1):.2%}")
    table.add_row("closed form", f"{exact:.4f}", "")
    return table


def targets() -> Table:
    """What a critic is trained on: samples of the return, or its mean, which forgets the spread."""
    generator = torch.Generator().manual_seed(0)
    steps, envs = 3, 100_000
    mean, std = 1.0 / (1.0 - GAMMA), (1.0 - GAMMA**2) ** -0.5
    rewards = 1.0 + torch.randn(steps, envs, generator=generator, dtype=torch.float64)
    levels, weights = tail_levels(32, ALPHA)
    quantiles, never = mean + std * NORMAL.icdf(levels), torch.zeros(steps, envs, dtype=torch.bool)
    table = Table(title="Return of i.i.d. N(1, 1) rewards, γ = 0.9, critic exact", title_justify="left")
    for heading in ("target", "mean", "std", "CVaR 5 %"):
        table.add_column(heading, justify="left" if heading == "target" else "right")
    point, certain = (quantiles * weights).sum().reshape(1), torch.ones(1, dtype=torch.float64)
    for name, values, widths in (("scalar (mean)", point, certain), ("distributional", quantiles, weights)):
        samples = distributional_targets(
            rewards, values, None, widths, never, never, gamma=GAMMA, lam=0.5, n_samples=1, generator=generator
        )[0, :, 0]
        tail = float(cvar.from_samples(samples, ALPHA))
        table.add_row(name, f"{float(samples.mean()):.2f}", f"{float(samples.std()):.2f}", f"{tail:.2f}")
    table.add_row("closed form", f"{mean:.2f}", f"{std:.2f}", f"{mean + std * normal_cvar(ALPHA):.2f}")
    return table


def ends() -> Table:
    """One step, three ways an episode can go on: only a termination is worth nothing more."""
    table = Table(
        title="Advantage of one step: r = 1, V = 2, V' = 10, next advantage 5, γ = λ = 0.9", title_justify="left"
    )
    for heading in ("after the step", "advantage", "because"):
        table.add_column(heading, justify="right" if heading == "advantage" else "left")
    rewards, values, following = (
        torch.tensor(pair, dtype=torch.float64)[:, None] for pair in ([1, 0], [2, 4], [10, 10])
    )
    for name, terminated, ended, reason in (
        ("the episode goes on", False, False, "1 + 0.9·10 − 2 + 0.81·5"),
        ("a time limit cuts it", False, True, "1 + 0.9·10 − 2: bootstrapped, nothing carried over"),
        ("it is over", True, True, "1 − 2"),
    ):
        terminations, cuts = torch.tensor([[terminated], [False]]), torch.tensor([[ended], [False]])
        found = gae(rewards, values, following, terminations, cuts, gamma=GAMMA, lam=0.9)
        table.add_row(name, f"{float(found[0, 0]):.2f}", reason)
    return table


def constraint() -> Table:
    """A position held by its multiplier: bar returns N(0.1 %, 1 %), no bar's CVaR 5 % below −1 %."""
    table = Table(title="Position in an asset with N(0.1 %, 1 %) bars, CVaR 5 % ≥ −1 %", title_justify="left")
    for heading in ("updates", "multiplier", "position", "CVaR 5 %"):
        table.add_column(heading, justify="right")
    mu, sigma, limit, multiplier = 0.001, 0.01, -0.01, 0.0
    unit_cvar = mu + sigma * normal_cvar(ALPHA)
    for update in range(301):
        # The best reply to λ of an investor who likes mean, dislikes half the variance and pays λ for the tail.
        position = max(0.0, (mu + multiplier * unit_cvar) / sigma**2)
        if update in (0, 10, 50, 300):
            table.add_row(str(update), f"{multiplier:.4f}", f"{position:.2f}", f"{position * unit_cvar:.2%}")
        multiplier = dual_ascent(multiplier, position * unit_cvar, limit=limit, lr=0.01, ceiling=100.0)
    table.add_row("closed form", "", f"{limit / unit_cvar:.2f}", f"{limit:.2%}")
    return table


def main() -> None:
    console = Console()
    console.print("[bold]Leeward[/bold]: the equations, on numbers whose answer is known\n")
    for table in (grids(), targets(), ends(), constraint()):
        console.print(table, "")


if __name__ == "__main__":
    main()
