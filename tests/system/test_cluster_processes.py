"""A cluster as it is deployed: scheduler and workers as processes of their own, one of which is killed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
from distributed import Client

import auxbit
from auxbit import BinaryAutoencoder
from helpers.cli_runner import run, run_json
from helpers.dask_cluster import rows_of_clusters


def dask(*arguments, log):
    command = [sys.executable, "-m", "dask", *arguments]
    with open(log, "w") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)


def address_in(path, process):
    """Where a scheduler listens, once it has written its file."""
    deadline = time.monotonic() + 60
    while not path.exists() or not path.read_text().rstrip().endswith("}"):
        assert process.poll() is None, "the scheduler ended"
        assert time.monotonic() < deadline, "the scheduler did not start"
        time.sleep(0.05)
    return str(path)


@pytest.fixture
def cluster(tmp_path):
    """The file that says where the scheduler is, and two workers without nannies."""
    place = tmp_path / "scheduler.json"
    with contextlib.ExitStack() as stack:

        def start(*arguments, log):
            process = stack.enter_context(dask(*arguments, log=tmp_path / log))
            stack.callback(process.kill)
            return process

        ours = ("--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0")
        scheduler = start("scheduler", *ours, "--scheduler-file", str(place), log="scheduler.log")
        file = address_in(place, scheduler)
        options = ("--scheduler-file", file, "--host", "127.0.0.1", "--nthreads", "1", "--no-nanny")
        folder = ("--no-dashboard", "--local-directory", str(tmp_path))
        workers = [start("worker", *options, *folder, log=f"worker-{i}.log") for i in range(2)]
        yield file, workers


@pytest.mark.slow
def test_scheduler_and_workers_as_processes_give_the_model_of_one_machine_though_one_is_killed(
    cluster, tmp_path
):
    file, workers = cluster
    X = rows_of_clusters(14_000)
    np.save(tmp_path / "x.npy", X)
    options = {"random_state": 0, "max_iter": 3, "n_jobs": 1}
    local = BinaryAutoencoder(8, **options).fit(X)

    def kill(record):
        if record.iteration == 2:
            workers[0].kill()

    with Client(scheduler_file=file) as client:
        client.wait_for_workers(2, timeout=60)
        assert {os.getpid()}.isdisjoint(client.run(os.getpid).values())
        whole = BinaryAutoencoder(8, **options).fit(tmp_path / "x.npy", client=client)
        halved = BinaryAutoencoder(8, callback=kill, **options).fit(tmp_path / "x.npy", client=client)
        assert len(client.nthreads()) == 1
    assert np.mean(whole.transform(X) == local.transform(X)) >= 0.995
    assert whole.score(X) == pytest.approx(local.score(X), rel=1e-3)
    assert np.array_equal(whole.encoder_.weights, halved.encoder_.weights)
    assert workers[0].wait(10) != 0


def test_the_command_line_trains_on_a_cluster(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X = rows_of_clusters(14_000)
    np.save("x.npy", X)
    address = json.loads((tmp_path / "scheduler.json").read_text())["address"]
    quick = ("--bits", 8, "--max-iter", 2)
    summary = run_json("fit", "x.npy", "-o", "there.safetensors", *quick, "--dask", address)
    run_json("fit", "x.npy", "-o", "here.safetensors", *quick)
    here, there = auxbit.load("here.safetensors"), auxbit.load("there.safetensors")
    assert np.mean(here.transform(X) == there.transform(X)) >= 0.995
    assert summary["passes"] == there.n_passes_ > 5
    assert summary["n_rows"] == 14_000


def test_where_no_scheduler_answers_the_command_line_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("auxbit.mac.cluster.CONNECTED_WITHIN", 0.2)
    np.save("x.npy", rows_of_clusters(100))
    for address in ("tcp://127.0.0.1:1", "nonsense://there"):
        result = run("fit", "x.npy", "-o", "m.safetensors", "--dask", address, code=1)
        assert f"no Dask scheduler responds at {address}" in result.stderr
        assert "dask scheduler" in result.stderr
    assert not (tmp_path / "m.safetensors").exists()


def test_a_checkpoint_is_refused_with_a_cluster(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", rows_of_clusters(100))
    result = run("fit", "x.npy", "-o", "m", "--dask", "tcp://127.0.0.1:1", "--checkpoint", "state", code=2)
    assert "--checkpoint" in result.stderr
