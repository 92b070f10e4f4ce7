"""What processes tell each other: shares of 5 envs are 2, 2 and 1, so no mean of means is right by accident."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from leeward.algorithm.parallel.process_group import SINGLE_PROCESS, SeveralProcesses, share_of_envs
from leeward.errors import TrainingDiverged
from leeward.rollout import streams
from leeward.telemetry.metrics import Metric, Numbers

from ..support.replicas import in_threads

SIZE, ENVS = 3, 5
WHOLE = torch.randn(4, ENVS, 2, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.arange(5)[:, None]


def mine(group: SeveralProcesses, values: torch.Tensor = WHOLE) -> torch.Tensor:
    return values[:, share_of_envs(ENVS, SIZE, group.rank)]


@pytest.mark.parametrize(("n_envs", "size"), [(5, 3), (4, 4), (64, 2), (7, 1), (9, 4)])
def test_shares_are_neighbours_cover_all_envs_and_differ_by_one_at_most(n_envs, size):
    shares = [share_of_envs(n_envs, size, rank) for rank in range(size)]
    assert [env for each in shares for env in range(n_envs)[each]] == list(range(n_envs))
    counts = [each.stop - each.start for each in shares]
    assert max(counts) - min(counts) <= 1


def test_columns_are_those_of_all_envs_and_own_takes_ones_own():
    flags = WHOLE > 0
    for columns, flags_seen, own in in_threads(
        SIZE, ENVS, lambda group: (group.columns(mine(group)), group.columns(mine(group, flags)), group.own(WHOLE))
    ):
        assert torch.equal(columns, WHOLE)
        assert flags_seen.dtype == torch.bool and torch.equal(flags_seen, flags)
        assert own.shape[1] in (1, 2)


def test_moments_and_averages_are_those_of_all_envs():
    alone = SINGLE_PROCESS.moments(WHOLE)
    found = in_threads(SIZE, ENVS, lambda group: (group.moments(mine(group)), group.average(mine(group).mean((0, 1)))))
    for moments, average in found:
        assert moments == pytest.approx(alone, rel=1e-12)
        assert_close(average, WHOLE.mean((0, 1)))
    assert len({moments for moments, _ in found}) == 1, "the same bits everywhere"


def test_metrics_are_weighted_by_envs_and_one_that_some_lack_is_of_the_others():
    mean, rare = Metric("mean", "", ""), Metric("rare", "", "")
    most, count, least = (Metric(way, "", "", combine=way) for way in ("max", "sum", "min"))

    def role(group: SeveralProcesses) -> Numbers:
        own = {mean: float(group.rank), most: float(group.rank), count: 1.0, least: -1.0 * group.rank}
        return group.combine(own | ({rare: 7.0} if group.rank == 2 else {}))

    # Shares of 2, 2 and 1: (2 × 0 + 2 × 1 + 1 × 2) / 5 = 0.8
    wanted = {mean: 0.8, most: 2.0, count: 3.0, least: -2.0, rare: 7.0}
    assert all(found == pytest.approx(wanted) for found in in_threads(SIZE, ENVS, role))


def test_a_process_group_that_torch_holds_serves_as_well():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        group = SeveralProcesses(torch.distributed.group.WORLD, ENVS)
        assert torch.equal(group.columns(WHOLE), WHOLE)
        assert group.gather("alone") == ["alone"]
        group.check_replicas([WHOLE], 0)
    finally:
        torch.distributed.destroy_process_group()


def test_anything_can_be_gathered_in_order():
    found = in_threads(SIZE, ENVS, lambda group: group.gather({"rank": group.rank, "much": "x" * 1000 * group.rank}))
    assert all([each["rank"] for each in everybody] == [0, 1, 2] for everybody in found)
    assert [len(each["much"]) for each in found[0]] == [0, 1000, 2000]


def test_joined_gradients_are_the_mean_over_the_steps_of_all():
    # Means over 3, 5 and 0 steps: (3 × 1 + 5 × 2) / 8 = 1.625; the last process had no sequence left.
    def role(group: SeveralProcesses) -> tuple[float, float, float, torch.Tensor, bool, torch.Tensor]:
        used, unused, partly = (nn.Parameter(torch.zeros(2)) for _ in range(3))
        n_real = (3, 5, 0)[group.rank]
        if n_real:
            used.grad = torch.full((2,), group.rank + 1.0)
        if group.rank == 1:
            partly.grad = torch.full((2,), 4.0)
        steps, kept, kl = group.join_gradients([used, unused, partly], n_real, float(n_real), 0.5)
        assert used.grad is not None and partly.grad is not None
        return steps, kept, kl, used.grad, unused.grad is None, partly.grad

    for steps, kept, kl, used, nobody, partly in in_threads(SIZE, ENVS, role):
        assert (steps, kept, kl) == (8.0, 8.0, 1.5)
        assert_close(used, torch.full((2,), 1.625))
        assert nobody, "a parameter without a gradient anywhere gets none"
        assert_close(partly, torch.full((2,), 5 * 4.0 / 8))


def test_the_first_process_is_copied():
    def role(group: SeveralProcesses) -> torch.Tensor:
        weight = nn.Parameter(torch.full((3,), float(group.rank)))
        group.broadcast([weight])
        return weight.detach()

    assert all(torch.equal(found, torch.zeros(3)) for found in in_threads(SIZE, ENVS, role))


def test_replicas_that_differ_in_one_bit_are_noticed():
    def role(group: SeveralProcesses, differ: bool) -> None:
        weight = torch.ones(1000)
        if differ and group.rank == 1:
            weight[500] = float(np.nextafter(np.float32(1.0), np.float32(2.0)))
        group.check_replicas([weight, torch.zeros((), dtype=torch.float64), torch.ones(3, dtype=torch.bool)], 4)

    in_threads(SIZE, ENVS, lambda group: role(group, False))
    with pytest.raises(TrainingDiverged, match="update 4: the processes' weights are no longer the same"):
        in_threads(SIZE, ENVS, lambda group: role(group, True))


def test_each_process_draws_its_own_numbers_and_the_first_those_of_a_plain_run():
    drawn = [streams.generator(3, streams.of_process(streams.SHUFFLE, rank), 7).random() for rank in range(3)]
    assert drawn[0] == streams.generator(3, streams.SHUFFLE, 7).random()
    assert len(set(drawn)) == 3
