"""Choosing an implementation of an operation, and remembering which ones a program was traced with."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

Implementation = tuple[str, Callable]

_traced: list[dict[str, str]] = []


@contextmanager
def traced_kernels() -> Generator[dict[str, str], None, None]:
    """Collect {operation: implementation} of everything traced inside the ``with`` block."""
    ran: dict[str, str] = {}
    _traced.append(ran)
    try:
        yield ran
    finally:
        # By identity: another thread's may be equal.
        _traced[:] = [other for other in _traced if other is not ran]


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
        for ran in _traced:
            ran[operation] = name
        return result
    raise NotImplementedError(
        f"no implementation of {operation} takes these arguments ({'; '.join(refusals)})"
    )
