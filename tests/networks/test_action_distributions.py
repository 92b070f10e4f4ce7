"""Action heads beside Stable-Baselines3's distributions, numerical integrals and torch's closed forms.

In float64, so that 1e-6 is a statement about formulas and not about rounding.
"""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from scipy import integrate
from stable_baselines3.common import distributions as sb3
from torch import distributions as td

from leeward.networks.action_distributions import (
    GaussianHead,
    SquashedStateDependentHead,
    StateDependentHead,
    make_action_head,
)
from leeward.networks.policy import MlpLstmPolicy

LATENT, ROWS = 5, 200
UNIT = spaces.Box(-1.0, 1.0, (3,))
WIDE = spaces.Box(np.float32([-2.0, 0.0, 1.0]), np.float32([2.0, 5.0, 9.0]))


def head_for(space, **more):
    settings = {"action_distribution": "gaussian", "log_std_init": -0.3, "use_sde": False, "full_std": True}
    settings |= {"use_expln": False, "squash_output": False}
    torch.manual_seed(1)
    head = make_action_head(space, LATENT, **(settings | more))
    torch.nn.init.normal_(head.net.weight, std=0.7)
    torch.nn.init.normal_(head.net.bias, std=0.3)
    if isinstance(head, GaussianHead):
        torch.nn.init.normal_(head.log_std, mean=-0.3, std=0.4)
    return head.double().requires_grad_(False)


def latents():
    return torch.randn(ROWS, LATENT, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def close(a, b, atol=1e-6):
    torch.testing.assert_close(a, b, atol=atol, rtol=1e-6)


DISCRETE = {
    "categorical": (spaces.Discrete(4), lambda: sb3.CategoricalDistribution(4)),
    "multi-categorical": (spaces.MultiDiscrete([2, 3, 4]), lambda: sb3.MultiCategoricalDistribution([2, 3, 4])),
    "bernoulli": (spaces.MultiBinary(4), lambda: sb3.BernoulliDistribution(4)),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_heads_equal_sb3s(name):
    space, make = DISCRETE[name]
    head, theirs = head_for(space), make()
    reference_net = theirs.proba_distribution_net(LATENT)
    assert reference_net.weight.shape == head.net.weight.shape
    parameters = head(latents())
    theirs.proba_distribution(parameters)
    close(head.mode(parameters).squeeze(-1), theirs.mode().double())
    close(head.entropy(parameters), theirs.entropy())
    noise = torch.rand((ROWS, *head.noise_shape), generator=torch.Generator().manual_seed(3))
    action = head.sample(parameters, noise)
    close(head.log_prob(parameters, action), theirs.log_prob(action.squeeze(-1)))


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_actions_are_drawn_as_often_as_their_probability_says(name):
    head = head_for(DISCRETE[name][0])
    n = 100_000
    parameters = head(latents()[:1]).expand(n, -1)
    noise = torch.rand((n, *head.noise_shape), generator=torch.Generator().manual_seed(4))
    drawn, counts = head.sample(parameters, noise).unique(dim=0, return_counts=True)
    probabilities = head.log_prob(parameters[: len(drawn)], drawn).exp()
    # five standard errors of a frequency; all outcomes with a share above 1e-3 are seen
    assert ((counts / n - probabilities).abs() < 5 * (probabilities / n).sqrt()).all()
    assert float(probabilities.sum()) > 0.99


def test_a_gaussian_equals_sb3s():
    head, theirs = head_for(UNIT), sb3.DiagGaussianDistribution(3)
    net, log_std = theirs.proba_distribution_net(LATENT, log_std_init=-0.3)
    fresh = make_action_head(UNIT, LATENT, action_distribution="gaussian", log_std_init=-0.3, use_sde=False,
                             full_std=True, use_expln=False, squash_output=False)  # fmt: skip
    assert net.weight.shape == fresh.net.weight.shape and torch.equal(log_std, fresh.log_std)
    parameters = head(latents())
    theirs.proba_distribution(head.net(latents()), head.log_std)
    action = head.sample(parameters, torch.randn(ROWS, 3, dtype=torch.float64))
    close(head.mode(parameters), theirs.mode())
    close(head.log_prob(parameters, action), theirs.log_prob(action))
    close(head.entropy(parameters), theirs.entropy())
    outside = torch.tensor([[-7.0, 0.25, 3.0]], dtype=torch.float64)
    assert head.to_env(outside).tolist() == [[-1.0, 0.25, 1.0]], "clipped, as SB3 does before the env"


def test_a_squashed_gaussian_equals_sb3s_up_to_the_stretch_to_its_bounds():
    theirs = sb3.SquashedDiagGaussianDistribution(3, epsilon=0.0)
    for space in (UNIT, WIDE):
        head = head_for(space, action_distribution="squashed")
        parameters = head(latents())
        theirs.proba_distribution(head.net(latents()), head.log_std)
        u = head.sample(parameters, torch.randn((ROWS, 3), generator=torch.Generator().manual_seed(5)).double())
        stretch = float(np.log((space.high - space.low) / 2).sum())
        close(head.log_prob(parameters, u), theirs.log_prob(u.tanh(), u) - stretch)
        low, high = torch.as_tensor(space.low), torch.as_tensor(space.high)
        close(head.to_env(head.mode(parameters)), low + (theirs.mode() + 1) / 2 * (high - low))
        assert bool(((head.to_env(u) >= low) & (head.to_env(u) <= high)).all())


@pytest.mark.parametrize("full_std", [True, False])
@pytest.mark.parametrize("use_expln", [True, False])
@pytest.mark.parametrize("squash", [True, False])
def test_state_dependent_noise_equals_sb3s(full_std, use_expln, squash):
    head = head_for(UNIT, use_sde=True, full_std=full_std, use_expln=use_expln, squash_output=squash)
    assert isinstance(head, StateDependentHead)
    theirs = sb3.StateDependentNoiseDistribution(
        3, full_std=full_std, use_expln=use_expln, squash_output=squash, epsilon=1e-6
    )
    net, log_std = theirs.proba_distribution_net(LATENT, log_std_init=-0.3, latent_sde_dim=LATENT)
    assert net.weight.shape == head.net.weight.shape and log_std.shape == head.log_std.shape
    torch.nn.init.normal_(head.log_std, std=0.7)  # both sides of 0, where expln changes its form
    close(head.std(), theirs.get_std(head.log_std).expand(-1, 3))
    latent = 0.5 * latents()
    parameters = head(latent)
    theirs.proba_distribution(head.net(latent), head.log_std, latent)
    close(parameters.chunk(2, -1)[1].exp(), theirs.distribution.stddev)
    noise = torch.randn((ROWS, LATENT, 3), generator=torch.Generator().manual_seed(6)).double()
    _, u = head.act(latent, noise, None)
    # SB3 draws its exploration matrix with the standard deviation already in it
    theirs.exploration_matrices = noise * theirs.get_std(head.log_std)
    close(u - head.mode(parameters), theirs.get_noise(latent))
    if not squash:
        close(head.log_prob(parameters, u), theirs.log_prob(u))
        close(head.entropy(parameters), theirs.entropy())
    else:
        theirs.bijector.epsilon = 0.0  # SB3 adds 1e-6 inside its logarithm; ours needs no such guard
        calm = u.abs().amax(-1) < 8.0  # beyond, SB3's inverse of tanh is clipped
        assert int(calm.sum()) > 150
        close(head.log_prob(parameters, u)[calm], theirs.log_prob(u.tanh())[calm])


def test_state_dependent_noise_is_squashed_by_either_name():
    asked = head_for(UNIT, use_sde=True, action_distribution="squashed")
    named = head_for(UNIT, use_sde=True, squash_output=True)
    assert type(asked) is type(named) is SquashedStateDependentHead
    assert type(head_for(UNIT, use_sde=True, action_distribution="gaussian")) is StateDependentHead


def test_the_squashed_entropy_is_the_integral_of_minus_p_ln_p():
    for mean, std in ((0.0, 0.5), (0.8, 1.0), (-1.5, 0.3)):
        head = head_for(spaces.Box(-2.0, 5.0, (1,)), action_distribution="squashed")
        parameters = torch.tensor([[mean, math.log(std)]], dtype=torch.float64)

        def integrand(u, head=head, parameters=parameters, mean=mean, std=std):
            density = math.exp(-0.5 * ((u - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
            return -density * float(head.log_prob(parameters, torch.tensor([[u]], dtype=torch.float64)))

        expected, _ = integrate.quad(integrand, mean - 9 * std, mean + 9 * std)
        assert float(head.entropy(parameters)) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("name", [*DISCRETE, "gaussian"])
def test_entropy_is_the_mean_of_minus_the_log_probability(name):
    head = head_for(DISCRETE[name][0] if name in DISCRETE else UNIT)
    parameters = head(latents()[:1]).expand(200_000, -1)
    draw = torch.rand if head.noise_kind == "uniform" else torch.randn
    noise = draw((200_000, *head.noise_shape), generator=torch.Generator().manual_seed(7))
    surprise = -head.log_prob(parameters, head.sample(parameters, noise))
    error = float(surprise.std()) / math.sqrt(len(surprise))
    assert float(surprise.mean()) == pytest.approx(float(head.entropy(parameters[:1])), abs=5 * error)


def test_divergences_equal_torchs():
    old, new = latents(), latents().flip(0)
    head = head_for(spaces.Discrete(4))
    a, b = head(old), head(new)
    close(head.kl(a, b), td.kl_divergence(td.Categorical(logits=a), td.Categorical(logits=b)))
    head = head_for(spaces.MultiDiscrete([2, 3]))
    a, b = head(old), head(new)
    pieces = zip(a.split([2, 3], -1), b.split([2, 3], -1), strict=True)
    close(head.kl(a, b), sum(td.kl_divergence(td.Categorical(logits=x), td.Categorical(logits=y)) for x, y in pieces))
    head = head_for(spaces.MultiBinary(4))
    a, b = head(old), head(new)
    close(head.kl(a, b), td.kl_divergence(td.Bernoulli(logits=a), td.Bernoulli(logits=b)).sum(-1))
    head, other = head_for(UNIT), head_for(UNIT)
    other.log_std.add_(torch.tensor([0.3, -0.2, 0.6]))
    a, b = head(old), other(new)
    normals = [td.Normal(x.chunk(2, -1)[0], x.chunk(2, -1)[1].exp()) for x in (a, b)]
    close(head.kl(a, b), td.kl_divergence(*normals).sum(-1))
    squashed = head_for(WIDE, action_distribution="squashed")
    close(squashed.kl(a, b), head.kl(a, b))  # a divergence does not change under an invertible map


@pytest.mark.parametrize("space", [spaces.Discrete(4), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3)], ids=str)
def test_a_mask_takes_all_probability_from_what_it_forbids_and_rescales_the_rest(space):
    head = head_for(space)
    generator = torch.Generator().manual_seed(8)
    masks = torch.rand((ROWS, sum(head.choices)), generator=generator) < 0.6
    for part in masks.split(head.choices, -1):
        part[:, 0] |= ~part.any(-1)
    free, held = head(latents()), head(latents(), masks)
    noise = torch.rand((ROWS, *head.noise_shape), generator=generator)
    for action in (head.sample(held, noise), head.mode(held)):
        chosen = action.long().split(1, -1)
        allowed = [m.gather(-1, c) for m, c in zip(masks.split(head.choices, -1), chosen, strict=True)]
        assert bool(torch.cat(allowed, -1).all())
    # p(a | allowed) = p(a) / Σ over the allowed of p, dimension by dimension
    expected = torch.zeros(ROWS, dtype=torch.float64)
    action = head.sample(held, noise)
    pieces = [torch.stack([torch.zeros_like(free[:, i]), free[:, i]], -1) for i in range(3)]
    if not isinstance(space, spaces.MultiBinary):
        pieces = list(free.split(head.choices, -1))
    for logits, mask, chosen in zip(pieces, masks.split(head.choices, -1), action.long().split(1, -1), strict=True):
        p = logits.softmax(-1)
        expected += (p.gather(-1, chosen).squeeze(-1) / (p * mask).sum(-1)).log()
    close(head.log_prob(held, action), expected)
    assert bool(torch.isfinite(head.entropy(held)).all()) and bool((head.entropy(held) >= -1e-6).all())
    assert bool(torch.isfinite(head.kl(held, head(latents().flip(0), masks))).all())


@pytest.mark.parametrize("space", [spaces.Discrete(3), WIDE], ids=str)
def test_a_fresh_network_is_initialised_with_sb3s_gains(space):
    def spectrum(layer: torch.nn.Linear) -> torch.Tensor:
        return torch.linalg.svdvals(layer.weight.detach())

    observations = spaces.Box(-1, 1, (6,))
    theirs = RecurrentActorCriticPolicy(observations, space, lambda _: 1e-3, lstm_hidden_size=16)
    ours = MlpLstmPolicy(observations, space, lambda _: 1e-3, lstm_hidden_size=16)
    pairs = [
        (theirs.mlp_extractor.policy_net[0], ours.actor_mlp[0]),
        (theirs.mlp_extractor.policy_net[2], ours.actor_mlp[2]),
        (theirs.mlp_extractor.value_net[0], ours.critic_mlps[1][0]),
        (theirs.action_net, ours.action_head.net),
    ]
    for reference, own in pairs:
        close(spectrum(own), spectrum(reference), atol=1e-5)
        assert not own.bias.any() and not reference.bias.any()
    close(spectrum(ours.value_heads[0]), torch.ones(32), atol=1e-5)  # SB3: gain 1, one output
    # the cells keep torch's own, uniform within 1/sqrt(hidden)
    assert 0.2 < float(ours.actor_memory.core.weight_hh_l0.detach().abs().max()) <= 0.25
