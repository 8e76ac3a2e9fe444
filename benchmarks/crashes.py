"""The long campaign of crashes: `python benchmarks/crashes.py kill|power`, raw results in docs/results/.

kill    a writer is killed by SIGKILL at random moments: --rounds, by default 1500
power   the power of a simulated disk is lost at random moments: --states, 20000 unless told
Both stop at the first loss and tell how to repeat it. --seed chooses others.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests"
MEMORY = Path("/dev/shm")  # neither kind of crash depends on the disk below
ROUNDS_AT_ONCE = 250  # of a process, so that a run can be repeated from near its loss
CHANGES = 30

sys.path.insert(0, str(TESTS))
os.environ["PYTHONPATH"] = str(TESTS)  # of the writers
os.environ.setdefault("OMP_NUM_THREADS", "1")

from helpers.power_loss import Recorded  # noqa: E402  after the path is set
from record import Results  # noqa: E402


def kill(folder: Path, rounds: int, seed: int) -> dict[str, Any]:
    """Rounds of killing a writer; what it had acknowledged is compared after each."""
    acknowledged = done = 0
    while done < rounds:
        some = min(ROUNDS_AT_ONCE, rounds - done)
        command = [
            sys.executable,
            str(TESTS / "helpers" / "crash_writer.py"),
            str(folder),
            str(some),
            str(seed),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise SystemExit(f"LOST: {' '.join(command)}\n{ended.stdout}{ended.stderr}")
        acknowledged += int(ended.stdout.split()[2])
        done, seed = done + some, seed + 1
        print(f"{done} kills, {acknowledged} acknowledged changes, nothing lost", flush=True)
    return {"rounds": done, "acknowledged": acknowledged}


def power(folder: Path, states: int, seed: int) -> dict[str, Any]:
    """States that a disk may be left in, at points between all calls of runs of changes."""
    done = points = 0
    while done < states:
        recorded = Recorded(folder / str(seed), seed, CHANGES)
        points += len(recorded.disk.journal)
        for loss in recorded.losses(random.Random(seed), share=2):
            if loss:
                raise SystemExit(f"LOST: run {seed}, state {done}: {loss}")
            done += 1
        seed += 1
        print(f"{done} states at {points} points, nothing lost", flush=True)
    return {"states": done, "points": points}


CAMPAIGNS = {"kill": (kill, "rounds", 1500), "power": (power, "states", 20_000)}


def main() -> None:
    """Run a campaign and record it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="name", required=True)
    for name, (campaign, unit, number) in CAMPAIGNS.items():
        command = commands.add_parser(name, help=campaign.__doc__)
        command.add_argument(f"--{unit}", dest="number", type=int, default=number)
        command.add_argument("--seed", type=int, default=1000)
    given = parser.parse_args()
    campaign, unit, _ = CAMPAIGNS[given.name]
    command_line = f"python benchmarks/crashes.py {given.name} --{unit} {given.number} --seed {given.seed}"
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        found = campaign(Path(folder), given.number, given.seed)
    seconds = round(time.perf_counter() - start, 1)
    Results(f"crashes-{given.name}", command_line).add(**found, lost=0, seconds=seconds)


if __name__ == "__main__":
    main()
