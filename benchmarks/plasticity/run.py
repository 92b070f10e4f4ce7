"""Does an agent still learn after its world has changed again and again? Adam and the UPGD family, five seeds.

    python benchmarks/plasticity/run.py --all                  what is missing of sweep and runs, 30 minutes on one core
    python benchmarks/plasticity/run.py --table [--write]      the tables of all stored runs; --write: RESULTS.md

One agent goes through ten phases of 10,240 steps, nine changes (`tests/support/changing_tasks.py`). Everything but the
optimiser is the same: the default critic, two ReLU layers of 64, a constant rate. After each rollout of 1,024 steps the
deterministic policy is scored on what training does not see, as a share of what the best policy earns there.

Each utility optimiser stands beside the one it is built on: UPGD and SGD, UPGDW and AdamW, AdaptiveUPGD and Adam.
Settings are chosen by a sweep on seeds 100 and 101, on four phases, by the mean score over all of them, for each task
and optimiser alone: three rates, then three variants at the best of them. What was chosen is run on seeds 0 to 4.
"""

import pathlib
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from benchmarks.stored import Stored, command_line, median_and_range
from tests.support.changing_tasks import TASKS, Actions, play
from tests.support.plasticity import effective_rank, updates_to_recover

from leeward import DistributionalPPO
from leeward.optim.build import OPTIMIZERS

HERE = pathlib.Path(__file__).parent
RESULTS = Stored(HERE / "results.jsonl")
SEEDS, PHASES = range(5), 10
TUNING_SEEDS, TUNING_PHASES = (100, 101), 4
N_ENVS, N_STEPS, UPDATES = 64, 16, 10  # of a phase: 10,240 steps
RECOVERED = 0.8  # of what the best policy earns
TEST_ENVS = 128
COMMON: dict[str, Any] = {"n_steps": N_STEPS, "batch_size": 256, "n_epochs": 4, "ent_coef": 0.01, "device": "cpu"}
GAMMA = {"market": 0.5, "permuted": 0.0}  # both pay at once; in the market what is held decides what a turn costs

Settings = dict[str, Any]
ADAM_RATES, SGD_RATES = (3e-3, 1e-2, 3e-2), (0.3, 1.0, 3.0)
# optimiser: rates, then variants at the best of them
SWEEP: dict[str, tuple[tuple[float, ...], tuple[Settings, ...]]] = {
    "sgd": (SGD_RATES, ({"momentum": 0.9}, {"weight_decay": 0.01}, {"weight_decay": 0.03})),
    "upgd": (SGD_RATES, ({"sigma": 0.01}, {"weight_decay": 0.01}, {"sigma": 0.01, "weight_decay": 0.01})),
    "adam": (ADAM_RATES, ({"betas": [0.9, 0.99]}, {"betas": [0.9, 0.9]}, {"eps": 1e-3})),
    "adaptive_upgd": (ADAM_RATES, ({"sigma": 0.1}, {"sigma": 0.3}, {"sigma": 1.0})),
    "adamw": (ADAM_RATES, ({"weight_decay": 1.0}, {"weight_decay": 3.0}, {"weight_decay": 10.0})),
    "upgdw": (ADAM_RATES, ({"weight_decay": 3.0}, {"weight_decay": 10.0}, {"sigma": 0.3, "weight_decay": 10.0})),
}
# Run beside what the sweep chose: gentler rates, which a sweep on four phases cannot prefer, and pairs that differ in
# the optimiser or in the noise alone.
BESIDE: dict[str, tuple[tuple[str, Settings], ...]] = {
    "market": (
        ("upgd", {"lr": 0.3, "weight_decay": 0.03}),
        ("adam", {"lr": 3e-3}),
        ("adaptive_upgd", {"lr": 3e-3}),
        ("adamw", {"lr": 0.01, "weight_decay": 10.0}),
        ("upgdw", {"lr": 0.01, "weight_decay": 10.0}),
    ),
    "permuted": (),
}
HEAD = ["optimiser", "settings", "new network", "after changes 1-3", "after changes 7-9", "steps to 80 %"]
HEAD += ["dead, actor", "dead, critics", "effective rank"]
VERDICT = """\
**What helps is weight decay.** Without it Adam and AdaptiveUPGD end at 39 and 35 % in the market, and below where they
were after the first changes on both tasks; a gentler rate does not save them (39 and 51 %). With it SGD, UPGD, AdamW
and UPGDW are about as good after nine changes as a new network. The decay that does it, lr λ from 0.01 to 0.3 a step,
is far above every default.

**Where the UPGD family helps:** it keeps more units alive than the optimiser it is built on, where both have decay. At
the same rate and decay the critics have 5 % dead units with UPGD and 19 % with SGD, none with UPGDW and 20 % with AdamW
(market), 26 % with UPGDW and 41 % with AdamW (permuted). **Where it does not:** in what is earned. Pair by pair, at the
same settings and at the chosen ones, the ranges of the seeds overlap; gates and noise without decay (AdaptiveUPGD) do
not stop the decline, and there as many units die as with Adam.

**Dead units and rank explain little here.** At the gentle rate Adam has 1 % of dead units in the actor, a rank of 15
and 39 % of the reward; with decay the rank is 2 in the market, and the reward 98 %. What is slow is to unlearn a policy
that has become sure of itself, and decay keeps it from that: our reading, not a measurement.

**The default sigma is sensible.** UPGDW with 0.01 and with 0.3 (market, rate 0.01, decay 10) both keep every unit alive
and earn 97 % and 98 %. In the sweep AdaptiveUPGD gives 76, 76, 75 and 70 % (market) and 76, 80, 74 and 77 %
(permuted) with 0.01, 0.1, 0.3 and 1, UPGD with decay 81 and 81 %, and 87 and 89 %, with 0.001 and 0.01: no trend that
two seeds could tell from luck, but for the loss at 1 in the market.

**How far this goes.** Small networks, 102,400 steps, one entropy bonus. Rates are chosen on four phases, which favours
fast ones. The last five rows of the market were added when the others had been seen: gentler rates, and pairs that
differ in the optimiser or in the noise alone."""
CLASSES = OPTIMIZERS | {"sgd": torch.optim.SGD}


class Health(NamedTuple):
    dead_actor: float  # share of hidden units that are 0 for every observation
    dead_critics: float
    rank: float  # of the actor's last hidden layer


def relu_outputs(mlp: nn.Module, x: Tensor) -> Iterator[Tensor]:  # (B, F) -> (B, H) of each layer
    assert isinstance(mlp, nn.Sequential)
    for layer in mlp:
        x = layer(x)
        if isinstance(layer, nn.ReLU):
            yield x


@torch.no_grad()
def health(model: DistributionalPPO, observations: NDArray[np.float32]) -> Health:
    seen = torch.as_tensor(observations)
    actor = list(relu_outputs(model.policy.actor_mlp, seen))
    critics = [layer for mlp in model.policy.critic_mlps for layer in relu_outputs(mlp, seen)]
    dead = [float((torch.cat(layers, dim=1) <= 0.0).all(dim=0).double().mean()) for layers in (actor, critics)]
    return Health(dead[0], dead[1], effective_rank(actor[-1]))


def new_agent(task: str, optimizer: str, settings: Settings, seed: int, env: Any) -> DistributionalPPO:
    options = dict(settings)
    network = {"net_arch": [64, 64], "activation_fn": nn.ReLU, "optimizer_class": CLASSES[optimizer]}
    return DistributionalPPO(
        "MlpPolicy", env, learning_rate=options.pop("lr"), gamma=GAMMA[task], seed=seed,
        policy_kwargs=network | {"optimizer_kwargs": options}, **COMMON,
    )  # fmt: skip


def run(name: str, optimizer: str, settings: Settings, seed: int) -> dict[str, Any]:
    """One agent through all phases: its scores (phases, UPDATES), and its health at the end of each."""
    task, states = TASKS[name](seed), []
    scores: list[list[float]] = []
    task.begin(0)
    model = new_agent(name, optimizer, settings, seed, task.training(N_ENVS))

    def act(observation: NDArray[np.float32]) -> Actions:
        return np.asarray(model.predict(observation, deterministic=True)[0])

    for phase in range(TUNING_PHASES if seed in TUNING_SEEDS else PHASES):
        task.begin(phase)
        model.set_env(task.training(N_ENVS))
        best, seen = play(task.best, task.testing(TEST_ENVS))
        scores.append([])
        for _ in range(UPDATES):
            model.learn(N_ENVS * N_STEPS, reset_num_timesteps=False)
            earned, seen = play(act, task.testing(TEST_ENVS))
            scores[-1].append(round(earned / best, 4))
        states.append([round(value, 4) for value in health(model, seen)])
    return {"scores": scores, "health": states}


# --- sweep ------------------------------------------------------------------------------------------------------------


def tuning_score(task: str, optimizer: str, settings: Settings) -> float:
    """Mean over seeds, phases and updates."""
    key = {"task": task, "optimizer": optimizer, "settings": settings}
    return float(np.mean([RESULTS.get(**key, seed=seed)["scores"] for seed in TUNING_SEEDS]))


def best_of(task: str, optimizer: str, candidates: list[Settings]) -> Settings:
    return max(candidates, key=lambda settings: tuning_score(task, optimizer, settings))


def rates(optimizer: str) -> list[Settings]:
    return [{"lr": rate} for rate in SWEEP[optimizer][0]]


def variants(task: str, optimizer: str) -> list[Settings]:
    best = best_of(task, optimizer, rates(optimizer))
    return [best | variant for variant in SWEEP[optimizer][1]]


def chosen(task: str, optimizer: str) -> Settings:
    return best_of(task, optimizer, rates(optimizer) + variants(task, optimizer))


def ensure(task: str, optimizer: str, candidates: list[Settings], seeds: Iterable[int]) -> None:
    for settings, seed in product(candidates, seeds):
        make = partial(run, task, optimizer, settings, seed)
        RESULTS.ensure(make, task=task, optimizer=optimizer, settings=settings, seed=seed)


def run_all() -> None:
    for task, optimizer in product(TASKS, SWEEP):
        ensure(task, optimizer, rates(optimizer), TUNING_SEEDS)
        ensure(task, optimizer, variants(task, optimizer), TUNING_SEEDS)
        ensure(task, optimizer, [chosen(task, optimizer)], SEEDS)
    for task in TASKS:
        for optimizer, settings in BESIDE[task]:
            ensure(task, optimizer, [settings], SEEDS)


# --- tables -----------------------------------------------------------------------------------------------------------


def in_words(settings: Settings) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items())


def figures(task: str, optimizer: str, settings: Settings) -> list[str]:
    """The cells of one row: see `HEAD`."""
    third, steps = (PHASES - 1) // 3, N_ENVS * N_STEPS
    found = [RESULTS.get(task=task, optimizer=optimizer, settings=settings, seed=seed) for seed in SEEDS]
    scores = [np.array(row["scores"]) for row in found]
    late = [each[:, -3:].mean(axis=1) for each in scores]  # the last three scores before each change
    last = [Health(*np.mean(row["health"][-third:], axis=0)) for row in found]
    return [
        optimizer,
        in_words(settings),
        median_and_range(each[0] for each in late),
        median_and_range(each[1 : third + 1].mean() for each in late),
        median_and_range(each[-third:].mean() for each in late),
        median_and_range((steps * updates_to_recover(each[1:], RECOVERED) for each in scores), ",.0f"),
        median_and_range(each.dead_actor for each in last),
        median_and_range(each.dead_critics for each in last),
        median_and_range((each.rank for each in last), ".1f"),
    ]


def result_table(rows: Iterable[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (HEAD, ["---"] * len(HEAD), *rows)]


def sweep_table(task: str) -> list[str]:
    lines = ["| optimiser | mean score, the chosen one in bold |", "|---|---|"]
    for optimizer in SWEEP:
        best, cells = chosen(task, optimizer), []
        for settings in rates(optimizer) + variants(task, optimizer):
            cell = f"{in_words(settings)}: {tuning_score(task, optimizer, settings):.1%}"
            cells.append(f"**{cell}**" if settings == best else cell)
        lines.append(f"| {optimizer} | {' · '.join(cells)} |")
    return lines


def table() -> str:
    minutes = sum(row["seconds"] for row in RESULTS.rows) / 60.0
    lines = [
        "# Plasticity",
        "",
        f"`python benchmarks/plasticity/run.py --all`, then `--table --write`; {minutes:.0f} minutes on one core. "
        "Shares of what the best policy earns, mean of the last three scores of a phase; median of five seeds "
        "(smallest … largest). Steps to 80 %: mean over the nine changes, 10,240 where it was not reached. Dead units "
        "and effective rank: mean over the last three phases; two layers of 64, the rank is that of the second.",
    ]
    for task in TASKS:
        rows = [figures(task, optimizer, chosen(task, optimizer)) for optimizer in SWEEP]
        rows += [figures(task, optimizer, settings) for optimizer, settings in BESIDE[task]]
        lines += ["", f"## {task}", "", *result_table(rows)]
        lines += ["", "Sweep:", "", *sweep_table(task)]
    lines += ["", "## What it says", "", VERDICT]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    command_line(__doc__, table, HERE / "RESULTS.md", {"all": run_all})
