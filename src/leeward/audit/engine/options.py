"""Settings that are on and cannot have an effect, by what else is set."""

from collections.abc import Iterator

from leeward.algorithm.ppo import DistributionalPPO
from leeward.audit.findings import Fault
from leeward.config.settings import Settings

__all__ = ["idle_settings"]


def idle_settings(model: DistributionalPPO) -> Iterator[Fault]:
    """Each setting that differs from its default and is read by nobody."""
    now, usual = model.settings, Settings()
    memory = model.policy.cell is not None
    # setting, whether anybody reads it, who would
    readers = (
        ("sequence_length", memory, "a policy with memory"),
        ("burn_in", memory, "a policy with memory"),
        ("refresh_memory", memory and now.n_epochs > 1, "a policy with memory, from the second epoch on"),
        ("n_quantiles", now.critic == "quantile", "critic: quantile"),
        ("levels", now.critic == "quantile", "critic: quantile"),
        ("kappa", now.critic == "quantile", "critic: quantile"),
        ("n_atoms", now.critic == "categorical", "critic: categorical"),
        ("n_target_samples", now.value_targets == "distributional", "value_targets: distributional"),
        ("sde_sample_freq", now.use_sde, "use_sde: true"),
    )
    for name, is_read, reader in readers:
        if not is_read and getattr(now, name) != getattr(usual, name):
            yield Fault(
                "low",
                f"{name} is set and nobody reads it",
                f"{name} is {getattr(now, name)!r} (default {getattr(usual, name)!r}), which only matters with "
                f"{reader}.",
                f"Leave {name} out, or set what it belongs to.",
            )
    if now.micro_batch_size is not None and now.batch_size is not None and now.micro_batch_size >= now.batch_size:
        yield Fault(
            "low",
            "micro_batch_size does nothing",
            f"It is {now.micro_batch_size} and a minibatch has {now.batch_size} steps, so none is ever divided.",
            "Leave micro_batch_size out, or make it smaller than batch_size.",
        )
