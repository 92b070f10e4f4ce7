"""What the run says about itself: damaged files, openings of the seal, and options without an effect."""

from collections.abc import Callable, Iterator
from typing import Any

from leeward.audit.findings import Fault
from leeward.audit.run.subject import Rows
from leeward.config.run import RunConfig
from leeward.errors import RunDirectoryError
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Metric
from leeward.training.run_dir import RunDir
from leeward.training.verification import examine_run

__all__ = ["files_are_whole", "options_act", "test_stays_sealed", "versions_are_the_same"]


def files_are_whole(run: RunDir) -> Iterator[Fault]:
    """Every file is what was written, by its SHA-256 where it has one."""
    for path, problem in examine_run(run):
        if problem is not None:
            yield Fault(
                "critical",
                f"{path.relative_to(run.path)} is damaged",
                " ".join(problem.split()),
                "Restore it from a copy, or start a new run; `leeward verify` lists every part.",
            )


def versions_are_the_same(run: RunDir) -> Iterator[Fault]:
    """What was installed then is installed now."""
    if different := run.changed_versions():
        yield Fault(
            "low",
            "Other versions are installed than the run was trained with",
            f"{'; '.join(different)}. Numbers may differ in their last bits.",
            "Install the versions of run.json to compare to the last bit.",
        )


def test_stays_sealed(record: dict[str, Any]) -> Iterator[Fault]:
    """How often its test bars were looked at."""
    openings = record.get("openings", [])
    if not isinstance(openings, list):
        raise RunDirectoryError(f"run.json: openings must be a list, got {openings!r:.80}")
    earlier = max((int(entry.get("earlier", 0)) + 1 for entry in openings if isinstance(entry, dict)), default=0)
    if earlier > 1:
        yield Fault(
            "medium",
            "The test bars were opened more than once",
            f"By this run and those beside it {earlier} times: each look is a chance to choose by it.",
            "Judge by bars that came later, or by the first opening alone.",
        )


test_stays_sealed.__test__ = False  # type: ignore[attr-defined]  # a check, whatever pytest reads into its name


def options_act(config: RunConfig, progress: Rows) -> Iterator[Fault]:
    """Options that were on through the whole run and, by what it measured, changed nothing."""
    ppo, limited = config.ppo, [k for k, each in enumerate(config.risk) if each.limit is not None]
    wanted: list[tuple[bool, str, Metric, Callable[[float], bool], str, str]] = [
        # is it on, its name, the metric, what the metric reads when it does nothing, in words, what to do
        (
            ppo.target_kl is not None, "ppo.target_kl", metrics.KL_STOP_EPOCH, lambda x: x >= ppo.n_epochs,
            "no update stopped early", "Leave it out, or set it near the KL that updates reach (train/approx_kl).",
        ),
        (
            ppo.value_clip is not None or ppo.clip_range_vf is not None, "ppo.value_clip", metrics.VF_CLIP_ACTIVE_FRAC,
            lambda x: x == 0.0, "no prediction was ever clipped", "Leave it out, or make its radius smaller.",
        ),
        (
            ppo.vgs is not None, "ppo.vgs", metrics.VGS_SCALING_FACTOR, lambda x: x == 1.0,
            "every step had its full length", "Shorten its warm-up, or raise its strength.",
        ),
        (
            ppo.adversary is not None, "ppo.adversary", metrics.ADVERSARY_EPSILON, lambda x: x == 0.0,
            "its radius was 0 in every update", "Shorten its warm-up.",
        ),
        (
            ppo.awr is not None, "ppo.awr", metrics.BC_LOSS_RATIO, lambda x: x < 1e-3,
            "its gradient was less than a thousandth of the surrogate's", "Raise ppo.awr.coef, or leave it out.",
        ),
        (
            ppo.entropy is not None and ppo.entropy.end is not None and ppo.entropy.end != ppo.ent_coef,
            "ppo.entropy.end", metrics.ENT_COEF_EFFECTIVE, lambda x: x == ppo.ent_coef,
            "the coefficient never left its start", "Look at plateau_updates and plateau_slope.",
        ),
        (
            True, "ppo.clip_range", metrics.CLIP_FRACTION, lambda x: x == 0.0,
            "no ratio ever left it, so the policy hardly moved in an update",
            "Raise the learning rate or the epochs; look whether the advantages say anything.",
        ),
    ]  # fmt: skip
    wanted += [
        (
            True, "risk.limit" if k == 0 else f"risk.{k}.limit", metrics.RISK_MULTIPLIER.numbered(k + 1),
            lambda x: x == 0.0, "its multiplier was 0 in every update: the limit never bound",
            "Set a tighter limit, or know that it is met without being asked for.",
        )
        for k in limited
    ]  # fmt: skip
    for is_on, name, metric, idle, words, remedy in wanted:
        values = [row[metric.name] for row in progress if metric.name in row]
        if is_on and values and all(idle(value) for value in values):
            yield Fault(
                "medium" if name == "ppo.clip_range" else "low",
                f"{name} was on and did nothing",
                f"In {len(values)} updates {words} ({metric.name}).",
                remedy,
            )
    yield from _unread(config)


def _unread(config: RunConfig) -> Iterator[Fault]:
    """Keys that differ from their default and belong to something that is off."""
    usual, env, policy = RunConfig(), config.env, config.policy
    memory = policy.name == "MlpLstmPolicy"
    readers = [
        (f"policy.{key}", memory, "policy.name: MlpLstmPolicy") for key in ("lstm_hidden_size", "n_lstm_layers", "cell")
    ]
    readers += [
        (f"policy.{key}", config.ppo.use_sde, "ppo.use_sde: true") for key in ("full_std", "use_expln", "squash_output")
    ]
    readers += [(f"env.{key}", env.action == "weights", "env.action: weights") for key in ("min_weight", "max_weight")]
    readers += [("env.positions", env.action == "positions", "env.action: positions")]
    sharpe = env.reward == "differential_sharpe"
    readers += [
        (f"env.{key}", sharpe, "env.reward: differential_sharpe") for key in ("sharpe_memory_bars", "sharpe_prior_std")
    ]
    for key, is_read, reader in readers:
        section, name = key.split(".")
        now, default = (getattr(getattr(each, section), name) for each in (config, usual))
        if not is_read and now != default:
            yield Fault(
                "low",
                f"{key} is set and nobody reads it",
                f"{key} is {now!r} (default {default!r}), which only matters with {reader}.",
                f"Leave {key} out, or set what it belongs to.",
            )
