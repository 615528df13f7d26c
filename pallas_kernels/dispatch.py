"""Choosing an implementation of an operation, and remembering which ones a program was traced with."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

Implementation = tuple[str, Callable]

_traced: ContextVar[tuple[dict[str, str], ...]] = ContextVar("traced", default=())


@contextmanager
def traced_kernels() -> Generator[dict[str, str], None, None]:
    """Collect {operation: implementation} of everything that this thread traces inside the ``with`` block."""
    ran: dict[str, str] = {}
    token = _traced.set((*_traced.get(), ran))
    try:
        yield ran
    finally:
        _traced.reset(token)


def call(
    operation: str, implementations: Sequence[Implementation], requested: str | None, *arguments, **options
):
    """Call the first implementation that can take the arguments.

    An implementation refuses by raising NotImplementedError while it is traced, and the next one is tried.
    With ``requested`` only that one is tried. Raises ValueError for an unknown name, NotImplementedError when
    none is left.
    """
    if requested is not None:
        implementations = [entry for entry in implementations if entry[0] == requested]
        if not implementations:
            raise ValueError(f"{operation} has no implementation named {requested!r}")
    refusals = []
    for name, implementation in implementations:
        try:
            result = implementation(*arguments, **options)
        except NotImplementedError as refusal:
            refusals.append(f"{name}: {refusal}")
            continue
        for ran in _traced.get():
            ran[operation] = name
        return result
    raise NotImplementedError(
        f"no implementation of {operation} takes these arguments ({'; '.join(refusals)})"
    )
