"""Gradients of linear layers for every row of a batch at once, from a single backward pass.

The gradient of W in y = x W' + b is the sum of (gradient in y) x' over positions; kept apart by the first dimension, it
is one product of small matrices per row, however often the layer was used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from types import TracebackType

import torch
from torch import Tensor, nn


class LinearTape:
    """Notes what goes in and out of every linear layer of a module while it is open."""

    def __init__(self, module: nn.Module) -> None:
        self._uses: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)  # inputs, outputs
        self._layers = {name: part for name, part in module.named_modules() if isinstance(part, nn.Linear)}

    def __enter__(self) -> LinearTape:
        self._hooks = [layer.register_forward_hook(partial(self._note, name)) for name, layer in self._layers.items()]
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

    def gradients(self, total: Tensor, leaves: Sequence[Tensor]) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
        """Gradients of weights and biases, [rows, ...] each, and of the leaves."""
        outputs = [output for uses in self._uses.values() for _, output in uses]
        found = torch.autograd.grad(total, [*outputs, *leaves], materialize_grads=True)
        of_outputs = iter(found)
        result = {}
        for name, uses in self._uses.items():
            inputs = torch.cat([_positions(x.detach()) for x, _ in uses], 1)  # [rows, positions, in]
            slopes = torch.cat([_positions(next(of_outputs)) for _ in uses], 1)  # [rows, positions, out]
            result[f"{name}.weight"] = slopes.transpose(1, 2) @ inputs
            if self._layers[name].bias is not None:
                result[f"{name}.bias"] = slopes.sum(1)
        return result, found[len(outputs) :]


def _positions(values: Tensor) -> Tensor:
    """[rows, d] or [rows, positions, d] -> [rows, positions, d]."""
    return values.unsqueeze(1) if values.dim() == 2 else values
