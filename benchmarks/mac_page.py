"""The paths of MAC in docs/how-it-works.md: `python benchmarks/mac_page.py` writes docs/assets/mac.json.

Points in the plane, two to four bits; for every μ the hash function, the decoder and the codes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from auxbit.core.checks import Array
from auxbit.core.parallel import Workers
from auxbit.mac.h_step import SvmOptions
from auxbit.mac.loop import alternate
from auxbit.mac.steps import MemoryRows, Reconstruction, Steps
from auxbit.mac.z_step import ZOptions

PATH = Path(__file__).resolve().parents[1] / "docs" / "assets" / "mac.json"
N_POINTS = 240
SCHEDULE = [0.0002 * 1.5**step for step in range(40)]


def clusters(rng: np.random.Generator) -> Array:
    """Seven groups of points."""
    centres = rng.uniform(-0.45, 0.45, size=(7, 2))
    return centres[rng.integers(0, 7, N_POINTS)] + 0.04 * rng.standard_normal((N_POINTS, 2))


def ring(rng: np.random.Generator) -> Array:
    """Points on a circle, which no line divides well."""
    angle = rng.uniform(0, 2 * np.pi, N_POINTS)
    radius = 0.4 + 0.03 * rng.standard_normal(N_POINTS)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def cloud(rng: np.random.Generator) -> Array:
    """A long cloud of points."""
    return rng.standard_normal((N_POINTS, 2)) @ np.array([[0.2, 0.1], [0.0, 0.07]])


def path_of(X: Array, n_bits: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """MAC from the signs of random directions: what there is after each step."""
    Z = np.ascontiguousarray((X @ rng.standard_normal((2, n_bits)) > 0).astype(np.uint8))
    steps: list[dict[str, Any]] = []
    with Workers(1) as workers:
        options = ZOptions.resolve(n_bits, "enumerate", "best", 1, None)
        data = Steps(MemoryRows(X, Z, workers), svm=SvmOptions(), objective=Reconstruction(options))
        for step in alternate(data, SCHEDULE):
            hashed = step.h(X)
            differ = int((hashed != Z).sum())
            free = float(np.square(X - step.f(Z)).sum())
            steps.append({
                "mu": step.mu, "codes": [int(word) for word in Z @ (1 << np.arange(n_bits))],
                "weights": np.round(np.vstack([step.h.weights, step.h.bias]).T, 5).tolist(),
                "A": np.round(step.f.A, 5).tolist(), "b": np.round(step.f.b, 5).tolist(),
                "E_BFA": round(free, 4), "E_Q": round(free + step.mu * differ, 4),
                "E_BA": round(float(np.square(X - step.f(hashed)).sum()), 4), "differ": differ,
            })  # fmt: skip
    return steps


def main() -> None:
    """Compute all paths, and write them."""
    shown = []
    for seed, (name, draw) in enumerate({"groups": clusters, "a ring": ring, "a cloud": cloud}.items()):
        for n_bits in (2, 3, 4):
            rng = np.random.default_rng(seed)
            X = draw(rng)
            X = np.ascontiguousarray(X - X.mean(axis=0), dtype=np.float32)
            steps = path_of(X, n_bits, rng)
            shown.append({"name": name, "bits": n_bits, "points": np.round(X, 4).tolist(), "steps": steps})
            print(f"{name}, {n_bits} bits: {len(steps)} steps, {steps[-1]['differ']} bits differ at the end")
    PATH.write_text(json.dumps(shown, separators=(",", ":")) + "\n")
    print(f"{PATH.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
