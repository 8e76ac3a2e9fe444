"""Readers of what strangers send, tried with changed inputs: `python benchmarks/fuzz.py`, or `make fuzz`.

Each reader of `tests/helpers/fuzz_readers.py` gets --seconds of CPU time of mutations, and as many of inputs
that atheris chooses by the branches that they reach (`pip install atheris`; without it, mutations alone).
Results are added to docs/results/fuzz.jsonl. A fault is an error that is not ours, a crash, a hang, more
memory than 1 GB, or a file opened elsewhere; its input is kept in `fuzz-found/`, to be added to tests/corpus.

    python benchmarks/fuzz.py --seconds 60 npy hdf5      some readers, for longer
    python benchmarks/fuzz.py --inputs 1000000           again until each has had a million (hours; resumes)
    python benchmarks/fuzz.py corpus                     write tests/corpus again
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from record import RESULTS, machine

TESTS = Path(__file__).resolve().parents[1] / "tests"
FOUND = Path("fuzz-found")
PATH = RESULTS / "fuzz.jsonl"
KERNELS = [  # that numba could not compile if atheris put its counters into them
    *(f"core.{name}" for name in ("maps", "simd", "features", "parallel", "decoders")),
    "data.gist", "evaluate",
    *(f"mac.{name}" for name in ("h_step", "rows", "affinity", "z_step", "steps")),
    *(f"hashers.{name}" for name in ("klsh", "anchor_graph", "spherical")),
    *(f"quantiser.{name}" for name in ("kernels", "lists", "coder", "fit")),
    *(f"index.{name}" for name in ("codes", "lists", "multi_index", "asymmetric", "scan")),
]  # fmt: skip
sys.path.insert(0, str(TESTS))
os.environ.setdefault("OMP_NUM_THREADS", "1")


class Tally:
    """What one process has tried, told as a line of JSON when its CPU time is used up."""

    def __init__(self, reader: str, seconds: float) -> None:
        self.reader, self.until = reader, time.process_time() + seconds
        self.n, self.faults = 0, dict[str, int]()

    def attempt(self, folder: Path, content: bytes) -> None:
        """Try one input."""
        from helpers.fuzz_readers import Fault, try_input

        last = folder.parent.parent / f"auxbit-fuzz-last-{self.reader}"  # of a process that crashes
        last.write_bytes(content)
        try:
            try_input(self.reader, folder, content)
        except Fault as fault:
            self._note(fault, content)
        self.n += 1

    def _note(self, fault: Exception, content: bytes) -> None:
        frames = traceback.extract_tb((fault.__cause__ or fault).__traceback__)
        ours = [frame for frame in frames if f"{os.sep}auxbit{os.sep}" in frame.filename]
        place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "?"
        what = f"{str(fault)[:80]} at {place}"
        if what not in self.faults:
            FOUND.mkdir(exist_ok=True)
            (FOUND / f"{self.reader}-{len(self.faults)}-{os.getpid()}").write_bytes(content)
        self.faults[what] = self.faults.get(what, 0) + 1

    @property
    def ended(self) -> bool:
        """Whether its time is used up."""
        return time.process_time() > self.until

    def tell(self) -> None:
        """Print what was done."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"inputs": self.n, "faults": self.faults, "peak_mb": round(peak)}), flush=True)


def mutations(reader: str, seconds: float, seed: int) -> None:
    """Mutations of the corpus."""
    from helpers.fuzz_readers import inputs, watched

    tally = Tally(reader, seconds)
    with watched() as folder:
        for content in itertools.takewhile(lambda _: not tally.ended, inputs(reader, seed)):
            tally.attempt(folder, content)
    tally.tell()


def guided(reader: str, seconds: float, seed: int) -> None:
    """Inputs that atheris chooses, which begins with the corpus."""
    import atheris

    with atheris.instrument_imports(["auxbit"], [f"auxbit.{name}" for name in KERNELS]):
        from helpers.fuzz_readers import CORPUS, mutated, watched

    tally, kept, rng = Tally(reader, seconds), [], random.Random(seed)
    kept += [path.read_bytes() for path in sorted((CORPUS / reader).iterdir())]
    with tempfile.TemporaryDirectory() as own, watched() as folder:

        def one(content: bytes) -> None:
            tally.attempt(folder, content)
            if tally.ended:
                tally.tell()
                os._exit(0)  # libFuzzer has no other end that lets us tell

        def change(content: bytes, most: int, seed: int) -> bytes:
            way = rng.random()
            return bytes(atheris.Mutate(content, most) if way < 0.5 else mutated(content, rng, kept)[:most])

        options = [
            "-max_len=65536",
            f"-seed={seed + 1}",
            "-verbosity=0",
            "-rss_limit_mb=0",
            "-print_final_stats=0",
        ]
        atheris.Setup(["fuzz", *options, own, str(CORPUS / reader)], one, custom_mutator=change)
        atheris.Fuzz()


def campaign(readers: list[str], seconds: float, least: int) -> bool:
    """All readers, in both ways; again until each has had so many inputs. Returns whether there was no fault.

    Each turn has seeds that no recorded one had, so that a campaign resumes where it was stopped.
    """
    ways = ["mutations", *(["guided"] if find_spec("atheris") else [])]
    rows, fine = [json.loads(line) for line in PATH.read_text().splitlines()] if PATH.exists() else [], True
    while readers:
        for reader in readers:
            seed = 1 + max((row["seed"] for row in rows if row["reader"] == reader), default=-1)
            for way in ways:
                told = turn(reader, way, seconds, seed)
                fine = fine and not told["faults"]
                about = {"reader": reader, "way": way, "seed": seed, "cpu_seconds": seconds}
                rows.append(about | told | {"machine": machine()})
                with PATH.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                found = told["faults"] or "no fault"
                print(f"{reader:<12} {way:<10} {tried(rows, reader):>11,} inputs  {found}", flush=True)
        readers = [reader for reader in readers if tried(rows, reader) < least]
    return fine


def turn(reader: str, way: str, seconds: float, seed: int) -> dict[str, Any]:
    """One process of fuzzing, and what it told."""
    command = [sys.executable, __file__, way, reader, "--seconds", str(seconds), "--seed", str(seed)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    told: dict[str, Any] = json.loads(lines[-1]) if lines else {"inputs": 0, "faults": {"ended early": 1}}
    if ended.returncode:
        told["faults"][f"ended with {ended.returncode}"] = 1
        print(ended.stderr[-2000:], file=sys.stderr)
    return told


def tried(rows: list[dict[str, Any]], reader: str) -> int:
    """How many inputs a reader had in all turns."""
    return sum(row["inputs"] for row in rows if row["reader"] == reader)


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("readers", nargs="*", metavar="reader")
    parser.add_argument("--seconds", type=float, default=20, help="of CPU time, for each reader and way")
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--inputs", type=int, default=0, help="again until each has had that many")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")  # NumPy's, of headers by Python 2
    if asked.readers[:1] in (
        ["mutations"],
        ["guided"],
    ):  # before auxbit is imported, which atheris instruments
        return globals()[asked.readers[0]](asked.readers[1], asked.seconds, asked.seed)
    from helpers.fuzz_readers import READERS, write_corpus

    if asked.readers == ["corpus"]:
        write_corpus()
    elif unknown := set(asked.readers) - set(READERS):
        parser.error(f"no reader {', '.join(unknown)}; there are {', '.join(READERS)}")
    elif not campaign(asked.readers or list(READERS), asked.seconds, asked.inputs):
        raise SystemExit("there were faults: their inputs are in fuzz-found/")


if __name__ == "__main__":
    main()
