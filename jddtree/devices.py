"""Which devices run a pair: the flags for its layout, and joining with other processes."""

import argparse
import os
import socket
import sys
import time
from collections.abc import Callable

import jax

from jddtree.errors import InputError
from jddtree.sharding import ONE_DEVICE, Layout

_PATIENCE = 300.0
"""Seconds that a process waits for the first one; JAX waits as long."""

_ASKED = ("JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES")


def add_layout(add: Callable[..., object]) -> None:
    """Add --layout to a parser or a group of one."""
    add(
        "--layout",
        type=_layout,
        default=ONE_DEVICE,
        metavar="L",
        help="spread the pair over devices: tp8, ep8, ep4xtp2, dp2xtp4, pp8 and the like (default: one)",
    )


def add_processes(add: Callable[..., object]) -> None:
    """Add the flags of `join`."""
    add("--distributed", action="store_true", help="one of many processes, as Slurm or a TPU pod starts them")
    add("--coordinator", metavar="HOST:PORT", help="one of many processes: where process 0 can be reached")
    add("--process", type=int, metavar="N", help="with --coordinator: which process this is, from 0")
    add("--processes", type=int, metavar="M", help="with --coordinator: how many there are")


def join(flags: argparse.Namespace) -> None:
    """Join the other processes that the flags name; to be called before JAX looks for devices. The first
    process alone talks to the user.

    Raises:
      InputError: flags that do not go together, or nobody to join.
    """
    given = (flags.coordinator, flags.process, flags.processes)
    if any(value is not None for value in given):
        if None in given or flags.distributed:
            raise InputError("--coordinator, --process and --processes go together, without --distributed")
        if not 0 <= flags.process < flags.processes:
            raise InputError(f"--process {flags.process} is not one of --processes {flags.processes}, from 0")
        _check_address(flags.coordinator, serves=flags.process == 0)
        if flags.process:
            _await(flags.coordinator)
        elif flags.processes > 1:
            waiting = f"waiting for {flags.processes - 1} more to join at {flags.coordinator}"
            print(waiting, file=sys.stderr, flush=True)
    elif not flags.distributed:
        return
    try:
        jax.distributed.initialize(flags.coordinator, flags.processes, flags.process)
    except (RuntimeError, ValueError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"cannot join the other processes: {reason}; name them by --coordinator") from None


def _check_address(address: str, serves: bool) -> None:
    """Refuse what is no HOST:PORT, and a port that process 0 cannot have: a busy one ends the process."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(f"--coordinator {address!r} is not HOST:PORT with a port from 1 to 65535")
    if serves:
        try:
            with socket.create_server(("", int(port))):
                pass
        except OSError as error:
            raise InputError(
                f"--coordinator {address}: the port cannot be had here ({error.strerror})"
            ) from None


def _await(address: str) -> None:
    """Wait until process 0 listens. Raises InputError where it does not; JAX would end the process."""
    host, _, port = address.rpartition(":")
    began, told = time.monotonic(), False
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            return
        except OSError as error:  # a name may become known later too
            if time.monotonic() - began > _PATIENCE:
                reason = error.strerror or error
                raise InputError(f"--coordinator {address}: process 0 does not answer ({reason})") from None
        if not told:
            print(f"waiting for process 0 at {address}", file=sys.stderr, flush=True)
            told = True
        time.sleep(0.2)


def speaks() -> bool:
    """Whether this process is the one that talks to the user."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def missing() -> str | None:
    """Why JAX finds no devices here, in one line; None where it does."""
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split(" (set JAX_PLATFORMS")[0].splitlines() or ["there are no such devices"]
        given = [f"{name}={os.environ[name]}" for name in _ASKED if name in os.environ]
        return f"JAX cannot start with {', '.join(given) or 'its defaults'}: {reason[0]}"
    return None


def _layout(value: str) -> Layout:
    try:
        return Layout.parse(value)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
