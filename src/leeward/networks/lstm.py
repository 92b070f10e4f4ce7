"""Memory: an LSTM or GRU that steps one observation at a time in the rollout and whole sequences in the update.

A sequence never holds an episode start after its first step: `rollout.sequences` cuts there, so that one fused call
serves where a loop over time would otherwise be needed.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leeward.errors import ArgumentError, did_you_mean
from leeward.maths.nested import Memory

__all__ = ["CELLS", "LayerActivity", "Recurrence"]

CELLS: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}


class LayerActivity(NamedTuple):
    """What one layer computes on the way, for n steps: h alone cannot show that a memory is stuck."""

    gates: Tensor  # (n, G), each between 0 (shut) and 1 (open)
    squashed: Tensor  # (n, H), between −1 and 1: tanh of an LSTM's cell, a GRU's candidate


class Recurrence(nn.Module):
    """`layers` recurrent layers of width `hidden`; two state tensors for an LSTM, one for a GRU."""

    def __init__(self, cell: str, inputs: int, hidden: int, layers: int, kwargs: dict[str, Any]) -> None:
        super().__init__()
        if cell not in CELLS:
            raise ArgumentError(f"unknown cell {cell!r}; {did_you_mean(cell, CELLS)}")
        self.core = CELLS[cell](inputs, hidden, num_layers=layers, **kwargs)
        if self.core.bidirectional or self.core.batch_first:
            raise ArgumentError(
                "lstm_kwargs: a policy cannot look ahead, so bidirectional and batch_first must stay off"
            )
        self.hidden, self.layers = hidden, layers
        self._steps = self.core.bias and self.core.proj_size == 0  # what torch's single cells can do
        self.parts = 2 if cell == "lstm" else 1

    def forward(self, features: Tensor, memory: Memory) -> tuple[Tensor, Memory]:  # (L, S, F) -> (L, S, H)
        """Run over time from `memory`, which stands before the first step."""
        if len(features) == 1 and self._steps and not torch.is_grad_enabled():
            return self._step(features[0], memory)
        if self.parts == 2:
            output, (hidden, cell) = self.core(features, memory)
            return output, (hidden, cell)
        output, hidden = self.core(features, memory[0])
        return output, (hidden,)

    def _step(self, features: Tensor, memory: Memory) -> tuple[Tensor, Memory]:  # (S, F) -> (1, S, H)
        """One step without gradient, as in a rollout: the cell alone costs half of what the sequence kernel does."""
        after: list[tuple[Tensor, ...]] = []
        for layer, weights in enumerate(self.core.all_weights):
            before = tuple(part[layer] for part in memory)
            now: tuple[Tensor, ...]
            if self.parts == 2:
                now = torch.lstm_cell(features, before, *weights)
            else:
                now = (torch.gru_cell(features, before[0], *weights),)
            after.append(now)
            features = now[0]
        if self.layers == 1:  # a view is cheaper than a stack
            return features.unsqueeze(0), tuple(part.unsqueeze(0) for part in after[0])
        return features.unsqueeze(0), tuple(torch.stack(part) for part in zip(*after, strict=True))

    @torch.no_grad()
    def activity(self, features: Tensor, memory: Memory) -> list[LayerActivity]:  # (n, F), each (layers, n, H)
        """The gates and squashed states of every layer in one step from `memory`."""
        found: list[LayerActivity] = []
        for layer, weights in enumerate(self.core.all_weights):
            inner, outer, *rest = weights
            biases = rest[:2] if self.core.bias else (None, None)
            before = memory[0][layer]
            x = nn.functional.linear(features, inner, biases[0])
            h = nn.functional.linear(before, outer, biases[1])
            if self.parts == 2:
                opens, keeps, new, shows = (x + h).chunk(4, -1)
                cell = keeps.sigmoid() * memory[1][layer] + opens.sigmoid() * new.tanh()
                gates, squashed = torch.cat([opens, keeps, shows], -1).sigmoid(), cell.tanh()
                features = shows.sigmoid() * squashed
                if self.core.proj_size:
                    features = nn.functional.linear(features, rest[-1])
            else:
                (reset, update, new), (h_reset, h_update, h_new) = x.chunk(3, -1), h.chunk(3, -1)
                gates = torch.cat([reset + h_reset, update + h_update], -1).sigmoid()
                resets, updates = gates.chunk(2, -1)
                squashed = (new + resets * h_new).tanh()
                features = (1.0 - updates) * squashed + updates * before
            found.append(LayerActivity(gates, squashed))
        return found

    def initial(self, batch: int) -> Memory:
        """Zeros: what every episode starts from."""
        weight = next(self.parameters())
        shape = (self.layers, batch, self.hidden)
        return tuple(torch.zeros(shape, device=weight.device, dtype=weight.dtype) for _ in range(self.parts))
