"""How the envs answer what is done in them: after how many steps, and whether as they did before.

The noise of exploration is drawn apart from everything that is seen, so whatever goes together with it is what an
action has done. In a sound env something of an action shows in the step that follows it; where an action waits in a
buffer or on a line its first trace comes later. And while a policy changes little from rollout to rollout, rewards and
next observations follow from what is seen and done as they followed before; where they do not, the env is another.
"""

from typing import Any

import numpy as np
import torch

from leeward.algorithm.health_numbers import stride
from leeward.errors import CheckpointError
from leeward.maths.nested import parts_of
from leeward.networks.action_distributions import BernoulliHead
from leeward.networks.actor_critic import ActorCritic
from leeward.rollout.buffer import RolloutBuffer
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers

__all__ = ["EnvResponse", "answers_have_their_turn"]

_OFTEN, _EVERY = 32, 64  # updates at the start that are all looked at, and every how many-th is later
_TIMES, _ENVS, _FEW = 64, 4, 32  # of a rollout that are looked at; rows below which nothing is said
_SHOWN, _CROSSED, _TAKEN = 32, 7, 4  # features in which an action may show, that it may act by, and parts of it
_LAGS = 4  # steps after which an action's trace is looked for, from 0 on
_KEPT = 0.9  # of what was summed up, from one look to the next
_NONE = 1.75  # standard errors by which the largest of so many must be beyond chance, to be a trace
_CLEAR = 2.5  # how many times that a clear one is: what grows with the square of time is no more from step to step
_NEAR = 2.0  # spreads within which a step is like those of before
_RIDGE, _RATE = 1e-3, 0.2
_KNOWN, _FOLLOWS = 4, 0.5  # looks in which so much of a column's variance followed, after which it must go on to
_GIVES = 0.2  # how far below the usual a share counts as, when what is usual follows it
# Near its goal a policy leaves little to each step but the chance that always was, and that is no other rule: what the
# rule misses has to be so many times what it usually does, or the rule to be so much worse than none.
_MORE, _MISLEADS = 2.0, -0.3
_NAMES = ("moments", "rule", "origin", "place", "usual", "error", "sums", "squares")
_WORST = -3.0  # what less is explained than by a constant counts as


def answers_have_their_turn(number: int) -> bool:
    """Whether what the envs answer is looked at in this update; the first is 0."""
    return number < _OFTEN or number % _EVERY == _EVERY - 1


class EnvResponse:
    """Owns the sums over the looks, and by which rule rewards and features followed before.

    Of several processes the first alone looks, at its own envs: what a checkpoint holds is then all that there is.
    """

    def __init__(self) -> None:
        self._sums = self._squares = np.empty((0, 0))  # (lags × taken × crossed, columns)
        self._more, self._mixes = 0.0, 0  # of the reward follows from two steps mixed, and looks behind that
        # Of a rule by least squares, over the looks: where a feature stands still in one, others tell it apart.
        self._moments = np.empty((0, 0))  # (regressors, regressors)
        self._rule = np.empty((0, 0))  # (regressors, columns), of which it is the solution
        self._origin = np.empty((2, 0))  # mean and spread of features and columns that all looks are measured from
        self._place = np.empty((2, 0))  # mean and spread of the features that it is from
        self._usual, self._known = np.empty(0), 0  # share of variance that follows (columns,), and looks behind it
        self._error = np.empty(0)  # and the mean square of what does not (columns,)

    def look(self, policy: ActorCritic, rollout: RolloutBuffer) -> Numbers:
        """Of the envs of this process; nothing where there is too little to look at."""
        features = _features(rollout)  # (T', B', F)
        if features is None:
            return {}
        n = stride(rollout.shape[1], _ENVS)
        taken, expected = (part[:_TIMES, ::n, :_TAKEN].cpu().numpy() for part in _actions(policy, rollout))
        paid = rollout.rewards if rollout.original_rewards is None else rollout.original_rewards
        rewards = paid[:_TIMES, ::n, None].cpu().numpy().astype(np.float64)
        goes_on = ~rollout.ended[:_TIMES, ::n].cpu().numpy()[:-1]
        # A row for a trace is a step that has `_LAGS − 1` steps of its episode before it, and a successor.
        before = _LAGS - 1
        inside = goes_on.copy()
        inside[:before] = False
        for k in range(1, _LAGS):
            inside[k:] &= goes_on[:-k]
        # Of an env that leaves no choice no action has a column.
        if not taken.shape[-1] or np.count_nonzero(inside) < max(_FEW, 4 * (1 + features.shape[-1])):
            return {}
        follows = np.concatenate((rewards[:-1], features[1:]), -1)  # (T' − 1, B', 1 + F)
        seen = features[:-1]
        crossed = seen[..., :: stride(seen.shape[-1], _CROSSED)]  # (T' − 1, B', c)
        noise = taken - expected
        lagged = np.stack([np.roll(noise[:-1], k, 0)[inside] for k in range(_LAGS)], 1)  # (n, lags, A)
        return {
            metrics.ACTION_LAG: self._first_trace(lagged, crossed[inside], seen[inside], follows[inside]),
            metrics.REWARD_ELSEWHERE: self._mixed(
                [taken[:-1][inside], np.roll(taken[:-1], 1, 0)[inside]],
                [crossed[inside], np.roll(crossed, 1, 0)[inside]],
                follows[inside][:, :1],
            ),
            metrics.ENV_CHANGED: self._less_follows(
                taken[:-1][goes_on], crossed[goes_on], follows[goes_on][:, : 1 + _CROSSED], begun=not goes_on.all()
            ),
        }

    def _first_trace(
        self, noise: np.ndarray, crossed: np.ndarray, seen: np.ndarray, follows: np.ndarray
    ) -> float:  # (n, lags, A), (n, c), (n, F), (n, 1 + F)
        """The lag of the first trace, if it is a clear one and there is nothing before it, else 0."""
        left = _residuals(_with_one(seen), follows)
        state = _with_one(_standard(crossed))
        pairs = np.einsum("nla,nc->nlac", noise, state).reshape(len(noise), -1)
        sums, squares = pairs.T @ left, np.square(pairs).T @ np.square(left)
        if self._sums.shape == sums.shape:
            sums, squares = _KEPT * self._sums + sums, _KEPT**2 * self._squares + squares
        self._sums, self._squares = sums, squares
        errors = np.abs(sums) / np.sqrt(squares + (squares == 0.0))
        largest = errors.reshape(_LAGS, -1).max(-1)
        chance = np.sqrt(2.0 * np.log(errors.size / _LAGS)) + _NONE
        lag = int(np.argmax(largest > chance))
        return float(lag) if largest[lag] > _CLEAR * chance else 0.0

    def _mixed(
        self, taken: list[np.ndarray], crossed: list[np.ndarray], paid: np.ndarray
    ) -> float:  # of this step and of the one before: (n, A), (n, c); (n, 1)
        """How much more of the reward follows from this action and the state before, or the other way round, than from
        an action and a state of one step; mean of the looks, from the third on."""
        spread, size = float(paid.var()), float(np.square(paid).mean())
        crossed, paid = [_standard(state) for state in crossed], paid - paid.mean()
        products = _products(crossed[0])
        columns = (1 + taken[0].shape[1]) * (1 + crossed[0].shape[1])
        if spread <= 1e-10 * size or len(paid) < max(4 * columns, 2 * products.shape[1]):
            return 0.0
        # What a state pays by itself, position × price say, is no matter of actions, though one of them led to it.
        left = paid - products @ _fitted(products, paid)

        def follows(action: int, state: int) -> float:
            done = _crossed(taken[action], _with_one(crossed[state]))
            return 1.0 - float(np.square(left - done @ _fitted(done, left)).mean()) / spread

        more = max(follows(0, 1), follows(1, 0)) - max(follows(0, 0), follows(1, 1))
        self._mixes += 1
        self._more += max(1.0 / self._mixes, _RATE) * (more - self._more)
        return max(self._more, 0.0) if self._mixes > 2 else 0.0

    def _less_follows(
        self, taken: np.ndarray, crossed: np.ndarray, follows: np.ndarray, *, begun: bool
    ) -> float:  # (n, A), (n, c), (n, k)
        """How much less of the variance of a column follows by the rule so far than did before. Of steps like those
        that the rule is from: a policy that learns comes to where another straight line holds. A rule is known when it
        held over episodes that have `begun` meanwhile: within one, much stays as it is that the rule takes no note of.
        """
        both = np.concatenate((crossed, follows), -1)
        if self._origin.shape[1] != both.shape[1]:
            self._origin = _place(both)
        crossed, follows = np.split((both - self._origin[0]) / self._origin[1], [crossed.shape[1]], axis=1)
        done = _crossed(taken, _with_one(crossed))
        moments, rule, found = done.T @ done, done.T @ follows, 0.0
        place = np.stack((crossed.mean(0), crossed.std(0)))  # (2, c)
        if self._rule.shape != rule.shape or self._place.shape != place.shape:
            self._moments, self._rule, self._place = moments, rule, place
            self._usual, self._error, self._known = np.zeros(follows.shape[1]), np.zeros(follows.shape[1]), 0
            return 0.0
        alike = (np.abs(crossed - self._place[0]) <= _NEAR * self._place[1] + 1e-30).all(-1)
        if np.count_nonzero(alike) >= _FEW:
            share, error = self._explained(done[alike], follows[alike])
            if self._known >= _KNOWN:
                fails = (self._usual > _FOLLOWS) & ((error > _MORE * self._error) | (share < _MISLEADS))
                found = float((self._usual - share)[fails].max(initial=0.0))
            # What is usual gives way slowly, so that a change holds for several looks.
            rate = 1.0 / (self._known + 1.0) if self._known < _KNOWN else 0.1
            if self._known:
                share, error = share.clip(min=self._usual - _GIVES), error.clip(max=_MORE * self._error)
            self._usual, self._known = self._usual + rate * (share - self._usual), self._known + begun
            self._error = self._error + rate * (error - self._error)
        self._moments = self._moments + _RATE * (moments - self._moments)
        self._rule = self._rule + _RATE * (rule - self._rule)
        self._place = self._place + _RATE * (place - self._place)
        return found

    def _explained(self, done: np.ndarray, follows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(n, p), (n, k) -> (k,) each: share of the variance that follows by the rule, as usual where there is none,
        and the mean square of what does not."""
        spread = follows.var(0)
        varies = spread > 1e-10 * np.square(follows).mean(0)
        error = np.square(follows - done @ _solved(self._moments, self._rule)).mean(0)
        return np.where(varies, (1.0 - error / np.where(varies, spread, 1.0)).clip(min=_WORST), self._usual), error

    def state_dict(self) -> dict[str, Any]:
        counts = {"known": self._known, "more": self._more, "mixes": self._mixes, "traced": self._sums.shape[1]}
        return counts | {name: getattr(self, f"_{name}").ravel().tolist() for name in _NAMES}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        found = [np.array(state[name], float) for name in _NAMES]
        moments, rule, origin, place, usual, error, sums, squares = found
        columns = state["traced"]
        traces = (len(sums) // max(columns, 1), columns)
        uneven = len(rule) % max(len(usual), 1) or len(place) % 2
        regressors = len(rule) // max(len(usual), 1)
        uneven = uneven or len(origin) != len(place) + 2 * len(usual) or len(moments) != regressors**2
        uneven = uneven or len(error) != len(usual)
        if uneven or not len(sums) == len(squares) == traces[0] * columns:
            raise CheckpointError(
                f"a damaged checkpoint: the rule by which its envs answered has {len(rule)} numbers for {len(usual)} "
                f"columns with {len(error)} errors, the place where it held {len(place)} for means and spreads, and "
                f"traces of actions {len(sums)} and {len(squares)} for {columns}; expected as many for each"
            )
        if not _is_of_squares(squared := moments.reshape(regressors, regressors)):
            raise CheckpointError(
                "a damaged checkpoint: the moments of what its envs were told are no sums of squares and products"
            )
        counts = (state["known"], state["mixes"])
        if min(counts) < 0 or not all(np.isfinite(each).all() for each in (*found, state["more"])):
            raise CheckpointError(
                f"a damaged checkpoint: its envs were looked at {counts[0]} and {counts[1]} times, or a number of what "
                "they answered is not finite; expected counts from 0 on and finite numbers"
            )
        self._rule, self._place, self._usual = rule.reshape(-1, max(len(usual), 1)), place.reshape(2, -1), usual
        self._origin, self._error = origin.reshape(2, -1), error
        self._moments = squared
        self._sums, self._squares = sums.reshape(traces), squares.reshape(traces)
        self._known, self._more, self._mixes = state["known"], state["more"], state["mixes"]


def _features(rollout: RolloutBuffer) -> np.ndarray | None:  # (T', B', F) float64
    """Of observations without images that are small enough to be looked at whole; None of others."""
    parts = parts_of(rollout.observations)
    if any(part.ndim != 3 or not part.is_floating_point() for part in parts):
        return None
    if sum(part.shape[-1] for part in parts) > _SHOWN:
        return None
    n = stride(rollout.shape[1], _ENVS)
    return np.concatenate([part[:_TIMES, ::n].cpu().numpy() for part in parts], -1).astype(np.float64)


def _actions(policy: ActorCritic, rollout: RolloutBuffer) -> tuple[torch.Tensor, torch.Tensor]:  # (T, B, A) each
    """What was done, and what the policy does in the mean; of choices one column for each but the last."""
    head, parameters, actions = policy.action_head, rollout.action_parameters, rollout.actions
    if isinstance(head, BernoulliHead):
        return actions, parameters.sigmoid()
    if not head.choices:
        return actions, head.mode(parameters)
    choices = list(zip(head.choices, actions.unbind(-1), parameters.split(head.choices, -1), strict=True))
    taken = [torch.nn.functional.one_hot(chosen.long(), k)[..., :-1] for k, chosen, _ in choices]
    return torch.cat(taken, -1).float(), torch.cat([logs.exp()[..., :-1] for *_, logs in choices], -1)


def _with_one(columns: np.ndarray) -> np.ndarray:  # (n, k) -> (n, 1 + k)
    return np.concatenate((np.ones((len(columns), 1)), columns), -1)


def _crossed(actions: np.ndarray, state: np.ndarray) -> np.ndarray:  # (n, A), (n, c) -> (n, c + A c)
    return np.concatenate((state, np.einsum("na,nc->nac", actions, state).reshape(len(state), -1)), -1)


def _place(columns: np.ndarray) -> np.ndarray:  # (n, k) -> (2, k)
    """Mean and spread of each; 1 for the spread of one that stands still."""
    spread = columns.std(0)
    return np.stack((columns.mean(0), np.where(spread > 1e-7 * np.abs(columns).max(0), spread, 1.0)))


def _standard(columns: np.ndarray) -> np.ndarray:  # (n, k)
    mean, spread = _place(columns)
    return np.asarray((columns - mean) / spread)


def _products(state: np.ndarray) -> np.ndarray:  # (n, c) -> (n, 1 + c + c (c + 1) / 2)
    """The state, and each of its parts times each."""
    whole = _with_one(state)
    one, other = np.triu_indices(whole.shape[1])
    return np.asarray(whole[:, one] * whole[:, other])


def _fitted(regressors: np.ndarray, columns: np.ndarray) -> np.ndarray:  # (n, p), (n, k) -> (p, k)
    """Least squares of numbers near 0."""
    return _solved(regressors.T @ regressors, regressors.T @ columns)


def _solved(moments: np.ndarray, products: np.ndarray) -> np.ndarray:  # (p, p), (p, k) -> (p, k)
    """Held near 0 by a small part of each regressor's size, in units of which it is solved: they may be of many orders
    of magnitude. A level far from 0 would be held as well."""
    sizes = np.diag(moments)
    unit = 1.0 / np.sqrt(sizes + (sizes == 0.0))
    squares = moments * np.outer(unit, unit) + _RIDGE * np.eye(len(unit))
    found: np.ndarray = np.linalg.solve(squares, products * unit[:, None]) * unit[:, None]
    return found


def _is_of_squares(moments: np.ndarray) -> bool:  # (p, p)
    """Whether it may be regressorsᵀ regressors; of another one `_solved` need not have a solution."""
    if not np.isfinite(moments).all() or not np.allclose(moments, moments.T):
        return False
    return not moments.size or bool(np.linalg.eigvalsh(moments)[0] >= -1e-9 * max(float(np.trace(moments)), 0.0))


def _residuals(regressors: np.ndarray, columns: np.ndarray) -> np.ndarray:  # (n, p), (n, k) -> (n, k)
    """What least squares leaves; exactly 0 of a column of which no more than rounding is left."""
    left: np.ndarray = columns - regressors @ np.linalg.lstsq(regressors, columns, rcond=None)[0]
    left[:, np.abs(left).max(0) < 1e-6 * np.abs(columns).max(0)] = 0.0
    return left
