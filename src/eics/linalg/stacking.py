"""Several operators of one shape as one whose batch is theirs, one after another: one product serves them all."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import singledispatch
from typing import TypeVar

from eics.linalg.blocks import cat_batches, equally_long
from eics.linalg.operators import HStack, LinearOperator
from eics.linalg.scaled import Scaled

Item = TypeVar("Item")


@singledispatch
def stack_key(operator: LinearOperator) -> Hashable:  # noqa: ARG001
    """Operators with an equal key can be stacked; None for an operator that cannot."""
    return None


@singledispatch
def stack_all(first: LinearOperator, operators: Sequence[LinearOperator]) -> LinearOperator:
    """All `operators`, of which `first` is the first, as one; they have an equal key."""
    raise AssertionError(f"{type(first).__name__} cannot be stacked with {len(operators) - 1} others")


def stack(operators: Sequence[LinearOperator]) -> LinearOperator:
    """Operators with an equal key as one; a single operator stays itself."""
    return operators[0] if len(operators) == 1 else stack_all(operators[0], operators)


def by_key(items: Sequence[Item], key: Callable[[Item], Hashable]) -> Iterator[list[Item]]:
    """Items with an equal key together, in order; an item whose key is None alone."""
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        own = key(item)
        groups.setdefault(("alone", id(item)) if own is None else own, []).append(item)
    yield from groups.values()


@stack_key.register
def _(operator: HStack) -> Hashable:
    keys = tuple(stack_key(part) for part in operator.parts)
    return None if None in keys else keys


@stack_all.register
def _(first: HStack, operators: Sequence[HStack]) -> LinearOperator:  # noqa: ARG001
    return HStack([stack(parts) for parts in zip(*(operator.parts for operator in operators), strict=True)])


@stack_key.register
def _(operator: Scaled) -> Hashable:
    base = stack_key(operator.base)
    return None if base is None else ("scaled", base)


@stack_all.register
def _(first: Scaled, operators: Sequence[Scaled]) -> LinearOperator:
    left = cat_batches(equally_long([operator.left for operator in operators], first.rows), first.batch)
    right = cat_batches(equally_long([operator.right for operator in operators], first.cols), first.batch)
    return Scaled(stack([operator.base for operator in operators]), left, right)
