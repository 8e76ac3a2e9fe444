"""A fit by passes stays within its budget: anonymous memory, measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

N, D = 300_000, 384  # 460 MB as float32
BUDGET = 128
# rows that are nowhere: slices of a few blocks, again and again
FIT = f"""
import json, sys, threading, time, warnings
import numpy as np
from auxbit import BinaryAutoencoder
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from helpers.large_rows import OnlySlices
warnings.simplefilter("ignore")

base = np.random.default_rng(0).normal(size=(8192, {D})).astype(np.float32)

class Endless(OnlySlices):
    def __init__(self, n):
        self.shape = (n, {D})
    def __getitem__(self, rows):
        start = rows.start % 4096
        return base[start : start + rows.stop - rows.start]

def anonymous():
    lines = open("/proc/self/status").readlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1000

def watch():
    while not over.wait(0.005):
        seen.append(anonymous())

def fit(n):
    model = BinaryAutoencoder(8, random_state=0, max_iter=2, validation=base[:20], n_jobs=2)
    return model.fit(Endless(n), memory="{BUDGET}MB")

fit(5000)  # libraries and kernels are loaded
before, over = anonymous(), threading.Event()
seen = [before]
watcher = threading.Thread(target=watch)
watcher.start()
model = fit({N})
over.set()
watcher.join()
print(json.dumps({{"above": max(seen) - before, "passes": model.n_passes_}}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="RssAnon is Linux's")
def test_a_fit_to_rows_of_three_times_the_budget_stays_below_it():
    done = subprocess.run([sys.executable, "-c", FIT], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["passes"] > 5
    assert found["above"] < BUDGET < 4 * N * D / 1e6 / 3
