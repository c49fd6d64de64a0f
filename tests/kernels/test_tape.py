"""A tape gives every row of a batch the gradients that it has alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from veilrec.kernels.tape import Tape, by_row


class Twice(nn.Module):
    """Uses one layer on sequences and another one twice, once on what depends on nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(3, 4, bias=False)
        self.state = nn.Linear(4, 4)

    def forward(self, values: Tensor) -> Tensor:
        start = self.state(torch.zeros(len(values), 4))
        sums: Tensor = self.state(start.tanh() + self.wide(values).sum(1)).tanh().sum(-1)
        return sums


def names(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters()]


def test_rows_have_the_gradients_that_they_have_alone() -> None:
    torch.manual_seed(0)
    module, values = Twice(), torch.randn(5, 2, 3)
    leaf = values.clone().requires_grad_()
    with Tape(module, names(module)) as tape:
        each = module(leaf)
    noted, (of_leaf,) = tape.slopes((each * torch.arange(5.0)).sum(), (leaf,))
    found = by_row(tape, noted)
    assert found.keys() == dict(module.named_parameters()).keys()
    for row in range(5):
        alone = values[row : row + 1].clone().requires_grad_()
        module.zero_grad()
        (module(alone)[0] * row).backward()
        assert alone.grad is not None
        assert torch.allclose(of_leaf[row], alone.grad[0], atol=1e-6)
        for name, value in module.named_parameters():
            assert value.grad is not None
            assert torch.allclose(found[name][row], value.grad, atol=1e-6), name


def test_layers_are_left_without_hooks() -> None:
    module = Twice()
    with Tape(module, names(module)):
        module(torch.randn(2, 2, 3))
    assert not any(part._forward_hooks for part in module.modules())
