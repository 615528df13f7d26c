"""Several processes that decode together."""

import argparse
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from jddtree.checkpoint import open_checkpoint
from jddtree.devices import join
from jddtree.errors import InputError
from tests import tiny

RUNS = json.loads((tiny.TRAINED / "runs.json").read_text())


def test_two_processes_write_what_one_does(tmp_path):
    run = next(run for run in RUNS["runs"] if run["method"] == "ar" and not run["stop_token_ids"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    target = tiny.TRAINED / "target"
    open_checkpoint(target, tmp_path, lambda line: None)
    prompt = json.dumps(RUNS["prompts"][run["prompt_index"]])
    words = [sys.executable, "-m", "jddtree.generate", "--target", str(target), "--method", "ar"]
    words += ["--cache-dir", str(tmp_path), "--layout", "pp2xtp2xdp2"]
    words += ["--prompt-ids", prompt, "--max-new-tokens", "12"]
    words += ["--coordinator", f"127.0.0.1:{port}", "--processes", "2"]
    cpu = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4", "JAX_DISABLE_MOST_OPTIMIZATIONS": "true"}
    started = [
        subprocess.Popen(
            [*words, "--process", str(process), "--json", str(tmp_path / f"{process}.json")],
            env=os.environ | cpu,
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=200) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [0, 0], outputs
    found = json.loads((tmp_path / "0.json").read_text())
    assert (found["layout"], found["output_ids"]) == ("dp2xpp2xtp2", run["output_ids"][:12])
    # The first process alone talks.
    assert outputs[0][0].strip() and "on 8 devices" in outputs[0][1]
    assert not (tmp_path / "1.json").exists()
    assert "tokens" not in outputs[1][0] + outputs[1][1]


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("nonsense", "is not HOST:PORT"),
        ("127.0.0.1:99999", "is not HOST:PORT"),
        ("127.0.0.1:BUSY", "cannot be had here"),
    ],
)
def test_an_address_that_cannot_serve_is_refused(address, reason):
    with socket.create_server(("", 0)) as busy:
        flags = argparse.Namespace(
            coordinator=address.replace("BUSY", str(busy.getsockname()[1])),
            process=0,
            processes=1,
            distributed=False,
        )
        with pytest.raises(InputError, match=reason):
            join(flags)


@pytest.mark.parametrize("host", ["127.0.0.1", "no.such.invalid"])
def test_a_first_process_that_is_not_there_is_one_line(host, monkeypatch, capsys):
    monkeypatch.setattr("jddtree.devices._PATIENCE", 0.3)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"{host}:{free.getsockname()[1]}"
        flags = argparse.Namespace(coordinator=address, process=1, processes=2, distributed=False)
        with pytest.raises(InputError, match="process 0 does not answer"):
            join(flags)
    assert capsys.readouterr().err == f"waiting for process 0 at {address}\n"
