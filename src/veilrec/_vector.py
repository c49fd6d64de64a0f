"""Vectors of eight singles for compiled code: for the few loops where LLVM's own choice is half as fast.

`load`, `spread` and operators give vectors, `store` writes one; a variable that holds a vector is a register. LLVM
turns the eight lanes into whatever the machine has.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

from veilrec._extras import missing_part

try:
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic, models, overload, register_model
except ModuleNotFoundError as error:
    raise missing_part("the compiled kernel of a network", error) or error from None

LANES = 8

_tools: Any = cgutils
_FAST = ("fast",)  # lets a product and a sum become one instruction
_ALIGNMENT = 4  # loads may start at any single
_LANE_NUMBER = ir.IntType(32)
_SINGLE = ir.FloatType()
_IR = ir.VectorType(_SINGLE, LANES)
_ZERO = ir.Constant(_IR, None)

Vector = Any  # as mypy sees it
Typed = tuple[Any, Callable[..., Any]]  # the signature of an intrinsic, and what generates its code


def _generated(function: Callable[..., Typed]) -> Callable[..., Any]:
    return cast(Callable[..., Any], intrinsic(function))


class _VectorType(types.Type):
    def __init__(self) -> None:
        super().__init__(name="Vector")


_vector = _VectorType()


@register_model(_VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _IR)  # type: ignore[no-untyped-call]


def _address(context: Any, builder: Any, kinds: Any, array: Any, place: Any) -> Any:
    parts = _tools.unpack_tuple(builder, place, len(kinds[1]))
    indices = [context.cast(builder, part, kind, types.intp) for part, kind in zip(parts, kinds[1], strict=True)]
    view = context.make_array(kinds[0])(context, builder, array)
    entry = _tools.get_item_pointer(context, builder, kinds[0], view, indices, wraparound=False)
    return builder.bitcast(entry, _IR.as_pointer())


def _spread(builder: Any, single: Any) -> Any:
    return _picked(builder, builder.insert_element(_ZERO, single, _LANE_NUMBER(0)), [0] * LANES)


def _picked(builder: Any, vector: Any, lanes: list[int]) -> Any:
    return builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(_LANE_NUMBER, len(lanes)), lanes))


@_generated
def load(_typing: Any, array: Any, place: Any) -> Typed:
    """The eight entries from `place`, a tuple of indices, on; they lie side by side, and nothing checks the bounds."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_address(context, builder, signature.args, *arguments), align=_ALIGNMENT)

    return _vector(array, place), generate


@_generated
def load_spread(_typing: Any, array: Any, place: Any) -> Typed:
    """The entry at `place` in all lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args, *arguments)
        return _spread(builder, builder.load(builder.bitcast(address, _SINGLE.as_pointer())))

    return _vector(array, place), generate


@_generated
def store(_typing: Any, array: Any, place: Any, value: Any) -> Typed:
    """Write the eight entries from `place` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args, *arguments[:2])
        builder.store(arguments[2], address, align=_ALIGNMENT)
        return context.get_dummy_value()

    return types.void(array, place, value), generate


@_generated
def spread(_typing: Any, value: Any) -> Typed:
    """One single in all lanes."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _spread(builder, arguments[0])

    return _vector(types.float32), generate


@_generated
def total(_typing: Any, vector: Any) -> Typed:
    """The sum of the lanes."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        left, half = arguments[0], LANES // 2
        while half:
            lower, upper = (_picked(builder, left, list(range(at, at + half))) for at in (0, half))
            left, half = builder.fadd(lower, upper, flags=_FAST), half // 2
        return builder.extract_element(left, _LANE_NUMBER(0))

    return types.float32(vector), generate


@_generated
def square_root(_typing: Any, vector: Any) -> Typed:
    """Of every lane."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_IR, [_IR])
        function = _tools.get_or_insert_function(builder.module, kind, f"llvm.sqrt.v{LANES}f32")
        return builder.call(function, arguments)

    return _vector(vector), generate


@_generated
def where_positive(_typing: Any, gate: Any, vector: Any) -> Typed:
    """The lanes of a vector where those of the gate are above 0; 0 elsewhere."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        gate, vector = arguments
        return builder.select(builder.fcmp_ordered(">", gate, _ZERO), vector, _ZERO)

    return _vector(gate, vector), generate


def _define_operator(function: Callable[[Any, Any], Any], instruction: str) -> None:
    @_generated
    def combine(_typing: Any, left: Any, right: Any) -> Typed:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return getattr(builder, instruction)(*arguments, flags=_FAST)

        return _vector(left, right), generate

    @overload(function)
    def of_vectors(left: Any, right: Any) -> Callable[[Any, Any], Any] | None:
        def combined(left: Any, right: Any) -> Any:
            return combine(left, right)

        return combined if left is _vector and right is _vector else None


_define_operator(operator.add, "fadd")
_define_operator(operator.sub, "fsub")
_define_operator(operator.mul, "fmul")
_define_operator(operator.truediv, "fdiv")
