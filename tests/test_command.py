"""How commands end."""

import os
import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path
from threading import Event

import jax
import pytest

from jddtree.command import Parser, exit_status, leave, path, waiting
from jddtree.errors import InputError, about


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (InputError("the prompt is empty"), 2, "error: the prompt is empty"),
        (
            FileNotFoundError(2, "No such file or directory", "x/y"),
            2,
            "error: x/y: No such file or directory",
        ),
        (OSError("odd"), 2, "error: input or output: odd"),
        (KeyboardInterrupt(), 130, "stopped"),
        (BrokenPipeError(32, "Broken pipe"), 141, None),
    ],
)
def test_what_a_user_can_cause_is_a_status_and_one_line(capsys, error, status, line):
    def job() -> int:
        raise error

    assert exit_status(job, "stopped") == status
    assert capsys.readouterr().err.splitlines() == ([line] if line else [])


def test_work_that_takes_long_is_told_of_off_a_terminal(capsys, monkeypatch):
    with waiting("compiling"):
        pass
    assert capsys.readouterr().err == ""
    told = Event()
    monkeypatch.setattr("jddtree.command.PATIENCE", 0.0)
    monkeypatch.setattr("jddtree.command.say", lambda line: (print(line), told.set()))
    with waiting("compiling"):
        assert told.wait(60)
    assert capsys.readouterr().out == "still compiling after 0 s\n"


def test_a_machine_without_the_devices_asked_for_is_one_line(capsys, monkeypatch):
    def job() -> int:
        raise RuntimeError("no devices")

    with pytest.raises(RuntimeError):
        exit_status(job, "stopped")
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")

    def devices() -> list:
        raise RuntimeError("Unable to initialize backend 'cuda': none (set JAX_PLATFORMS='' to)\nx")

    monkeypatch.setattr(jax, "devices", devices)
    assert exit_status(job, "stopped") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: JAX cannot start with JAX_PLATFORMS=cuda")
    assert line.endswith("Unable to initialize backend 'cuda': none")


@pytest.mark.parametrize("module", ["jddtree.generate", "scripts.eval_pair"])
def test_an_environment_that_jax_refuses_is_one_line(module):
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "many"},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == 'error: Invalid value "many" for JAX flag jax_num_cpu_devices\n'


def test_a_job_says_its_own_status():
    assert exit_status(lambda: 1, "stopped") == 1


def test_a_wrong_flag_is_bad_input():
    parser = Parser(prog="x")
    parser.add_argument("--folder", type=path)
    assert parser.parse_args(["--folder", "a"]).folder == Path("a")
    with pytest.raises(InputError, match="an empty name is no file or folder"):
        parser.parse_args(["--folder", ""])
    with pytest.raises(ArgumentTypeError):
        path("")


def test_leaving_after_an_interrupt_waits_for_no_thread():
    code = "import threading, time; from jddtree.command import leave\n"
    code += "threading.Thread(target=time.sleep, args=(60,)).start(); leave(130)"
    done = subprocess.run(
        [sys.executable, "-c", code], timeout=50, cwd=Path(__file__).parents[1], check=False
    )
    assert done.returncode == 130
    with pytest.raises(SystemExit) as caught:
        leave(1)
    assert caught.value.code == 1


def test_an_error_names_its_folder_once():
    place = Path("some/folder")
    with pytest.raises(InputError, match=r"^some/folder: no vocab_size$"), about(place):
        raise InputError("no vocab_size")
    with pytest.raises(InputError, match=r"^some/folder holds nothing$"), about(place):
        raise InputError("some/folder holds nothing")
