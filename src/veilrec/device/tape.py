"""Gradients of many rows at once from a single backward pass: a tape notes what goes in and out of every layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import TracebackType

import torch
from torch import Tensor, nn


class Tape:
    """Notes what goes in and out of every linear layer and every table of a module while it is open.

    The gradient of W in y = x W' + b is the sum of (gradient in y) x' over positions, that of a table the sum of
    (gradient in y) at the row that was looked up. Kept apart by the first dimension, they are the gradients of every
    row of a batch, however often the layer was used.
    """

    def __init__(self, module: nn.Module, learned: Collection[str]) -> None:
        self._uses: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)  # inputs, outputs
        self.layers = {
            name: part
            for name, part in module.named_modules()
            if isinstance(part, nn.Linear | nn.Embedding) and f"{name}.weight" in learned
        }

    def __enter__(self) -> Tape:
        self._hooks = [layer.register_forward_hook(partial(self._note, name)) for name, layer in self.layers.items()]
        return self

    def _note(self, name: str, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if not output.requires_grad:  # of an input that depends on nothing, such as a first state
            output.requires_grad_()
        self._uses[name].append((inputs[0], output))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()

    @property
    def inputs(self) -> Mapping[str, Sequence[Tensor]]:
        """What went into every layer that was used."""
        return {name: [x for x, _ in uses] for name, uses in self._uses.items()}

    def slopes(
        self, result: Tensor, leaves: Sequence[Tensor] = (), gradient: Tensor | None = None
    ) -> tuple[dict[str, tuple[Tensor, Tensor]], tuple[Tensor, ...]]:
        """Of every layer that was used, [rows, positions, ...]: its inputs and the gradient in its outputs; and the
        gradient in the leaves. `gradient` is that in the result, which is a single number without it.
        """
        outputs = [output for uses in self._uses.values() for _, output in uses]
        found = torch.autograd.grad(result, [*outputs, *leaves], gradient, materialize_grads=True)
        of_outputs, noted = iter(found), {}
        for name, uses in self._uses.items():
            width = 1 if isinstance(self.layers[name], nn.Linear) else 0  # of what one position puts in
            inputs = torch.cat([_positions(x.detach(), width) for x, _ in uses], 1)
            noted[name] = inputs, torch.cat([_positions(next(of_outputs), 1) for _ in uses], 1)
        return noted, found[len(outputs) :]

    def has_bias(self, name: str) -> bool:
        """Whether a layer has one."""
        return getattr(self.layers[name], "bias", None) is not None


def by_row(tape: Tape, noted: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Gradients of weights and biases of linear layers for every row: [rows, ...]."""
    result = {}
    for name, (inputs, slopes) in noted.items():
        result[f"{name}.weight"] = slopes.transpose(1, 2) @ inputs
        if tape.has_bias(name):
            result[f"{name}.bias"] = slopes.sum(1)
    return result


def _positions(values: Tensor, width: int) -> Tensor:
    """[rows, d] or [rows, positions, d] -> [rows, positions, d]; without d where the width is 0."""
    return values.unsqueeze(1) if values.dim() == 1 + width else values
