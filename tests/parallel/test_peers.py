"""What processes tell each other: shares of 5 envs are 2, 2 and 1, so no mean of means is right by accident."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from leeward.algorithm.peers import ALONE, Group, share
from leeward.errors import TrainingDiverged
from leeward.rollout import streams

from .worlds import in_threads

SIZE, ENVS = 3, 5
WHOLE = torch.randn(4, ENVS, 2, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.arange(5)[:, None]


def mine(peers: Group, values: torch.Tensor = WHOLE) -> torch.Tensor:
    return values[:, share(ENVS, SIZE, peers.rank)]


@pytest.mark.parametrize(("n_envs", "size"), [(5, 3), (4, 4), (64, 2), (7, 1), (9, 4)])
def test_shares_are_neighbours_cover_all_envs_and_differ_by_one_at_most(n_envs, size):
    shares = [share(n_envs, size, rank) for rank in range(size)]
    assert [env for each in shares for env in range(n_envs)[each]] == list(range(n_envs))
    counts = [each.stop - each.start for each in shares]
    assert max(counts) - min(counts) <= 1


def test_columns_are_those_of_all_envs_and_own_takes_ones_own():
    flags = WHOLE > 0
    for peers_saw, flags_seen, own in in_threads(
        SIZE, ENVS, lambda peers: (peers.columns(mine(peers)), peers.columns(mine(peers, flags)), peers.own(WHOLE))
    ):
        assert torch.equal(peers_saw, WHOLE)
        assert flags_seen.dtype == torch.bool and torch.equal(flags_seen, flags)
        assert own.shape[1] in (1, 2)


def test_moments_and_averages_are_those_of_all_envs():
    alone = ALONE.moments(WHOLE)
    found = in_threads(SIZE, ENVS, lambda peers: (peers.moments(mine(peers)), peers.average(mine(peers).mean((0, 1)))))
    for moments, average in found:
        assert moments == pytest.approx(alone, rel=1e-12)
        assert_close(average, WHOLE.mean((0, 1)))
    assert len({moments for moments, _ in found}) == 1, "the same bits everywhere"


def test_metrics_are_weighted_by_envs_and_one_that_some_lack_is_of_the_others():
    def role(peers: Group) -> dict[str, float]:
        own = {"mean": float(peers.rank), "most": float(peers.rank), "count": 1.0, "least": -1.0 * peers.rank}
        rare = {"rare": 7.0} if peers.rank == 2 else {}
        return peers.combine(own | rare, {"most": "max", "count": "sum", "least": "min"})

    # Shares of 2, 2 and 1: (2 × 0 + 2 × 1 + 1 × 2) / 5 = 0.8
    wanted = {"mean": 0.8, "most": 2.0, "count": 3.0, "least": -2.0, "rare": 7.0}
    assert all(found == pytest.approx(wanted) for found in in_threads(SIZE, ENVS, role))


def test_a_process_group_that_torch_holds_serves_as_well():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        peers = Group(torch.distributed.group.WORLD, ENVS)
        assert torch.equal(peers.columns(WHOLE), WHOLE)
        assert peers.gather("alone") == ["alone"]
        peers.check_replicas([WHOLE], 0)
    finally:
        torch.distributed.destroy_process_group()


def test_anything_can_be_gathered_in_order():
    found = in_threads(SIZE, ENVS, lambda peers: peers.gather({"rank": peers.rank, "much": "x" * 1000 * peers.rank}))
    assert all([each["rank"] for each in everybody] == [0, 1, 2] for everybody in found)
    assert [len(each["much"]) for each in found[0]] == [0, 1000, 2000]


def test_joined_gradients_are_the_mean_over_the_steps_of_all():
    # Means over 3, 5 and 0 steps: (3 × 1 + 5 × 2) / 8 = 1.625; the last process had no sequence left.
    def role(peers: Group) -> tuple[float, float, float, torch.Tensor, bool, torch.Tensor]:
        used, unused, partly = (nn.Parameter(torch.zeros(2)) for _ in range(3))
        n_real = (3, 5, 0)[peers.rank]
        if n_real:
            used.grad = torch.full((2,), peers.rank + 1.0)
        if peers.rank == 1:
            partly.grad = torch.full((2,), 4.0)
        steps, kept, kl = peers.join_gradients([used, unused, partly], n_real, float(n_real), 0.5)
        assert used.grad is not None and partly.grad is not None
        return steps, kept, kl, used.grad, unused.grad is None, partly.grad

    for steps, kept, kl, used, nobody, partly in in_threads(SIZE, ENVS, role):
        assert (steps, kept, kl) == (8.0, 8.0, 1.5)
        assert_close(used, torch.full((2,), 1.625))
        assert nobody, "a parameter without a gradient anywhere gets none"
        assert_close(partly, torch.full((2,), 5 * 4.0 / 8))


def test_the_first_process_is_copied():
    def role(peers: Group) -> torch.Tensor:
        weight = nn.Parameter(torch.full((3,), float(peers.rank)))
        peers.broadcast([weight])
        return weight.detach()

    assert all(torch.equal(found, torch.zeros(3)) for found in in_threads(SIZE, ENVS, role))


def test_replicas_that_differ_in_one_bit_are_noticed():
    def role(peers: Group, differ: bool) -> None:
        weight = torch.ones(1000)
        if differ and peers.rank == 1:
            weight[500] = float(np.nextafter(np.float32(1.0), np.float32(2.0)))
        peers.check_replicas([weight, torch.zeros((), dtype=torch.float64), torch.ones(3, dtype=torch.bool)], 4)

    in_threads(SIZE, ENVS, lambda peers: role(peers, False))
    with pytest.raises(TrainingDiverged, match="update 4: the processes' weights are no longer the same"):
        in_threads(SIZE, ENVS, lambda peers: role(peers, True))


def test_each_process_draws_its_own_numbers_and_the_first_those_of_a_plain_run():
    drawn = [streams.generator(3, streams.of_process(streams.SHUFFLE, rank), 7).random() for rank in range(3)]
    assert drawn[0] == streams.generator(3, streams.SHUFFLE, 7).random()
    assert len(set(drawn)) == 3
