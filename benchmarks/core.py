"""The figures of docs/training.md: `python benchmarks/core.py NAME`, raw results in docs/results/.

error       E_BA on digits and siftsmall against the authors' own code
schedule    how the growth of μ changes E_BA and time
starts      how the first codes change E_BA and precision
retrieval   precision on siftsmall against ITQ and the authors' code
validation  precision by μ on MNIST and siftsmall, and that the model kept is never below the first record
zsteps      what each acceleration of the paper's enumeration saves
groups      what the accelerations save inside groups of bits
conditions  how many codes each condition of appendix A proves global, and what it costs
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from auxbit import ITQ, BinaryAutoencoder
from auxbit.evaluate import ground_truth, hamming_ranking, precision_recall_at_k
from real_data import AUTHORS_ERROR, digits, siftsmall, siftsmall_scaled, total_error
from record import Results, data_folder, measured, run, table

SEEDS = (0, 1, 2)


def error(results: Results) -> str:
    """E_BA, no validation stop, default parameters."""
    rows = []
    for data, X in (("digits", digits()), ("siftsmall", siftsmall_scaled())):
        for bits in (8, 16, 32) if data == "digits" else (16, 32):
            for seed in SEEDS:
                with measured() as cost:
                    model = BinaryAutoencoder(bits, validation=None, random_state=seed).fit(X)
                itq = total_error(ITQ(bits, random_state=seed).fit(X), X)
                results.add(data=data, bits=bits, seed=seed, E_BA=total_error(model, X), E_ITQ=itq,
                            iterations=model.n_iter_, **cost)  # fmt: skip
            where = {"data": data, "bits": bits}
            means = [
                results.mean(column, **where) for column in ("E_ITQ", "E_BA", "iterations", "cpu_seconds")
            ]
            rows.append([data, bits, f"{means[0]:.1f}", AUTHORS_ERROR[data, bits], f"**{means[1]:.1f}**",
                         f"{means[2]:.0f}", f"{means[3]:.1f}"])  # fmt: skip
    return table(["data", "bits", "ITQ", "authors' code", "auxbit", "iterations", "CPU s"], rows)


def schedule(results: Results) -> str:
    """The default growth of μ, chosen by measurement."""
    rows = []
    sets = {"digits": digits(), "siftsmall": siftsmall_scaled()}
    for data, bits in (("digits", 8), ("digits", 32), ("siftsmall", 16), ("siftsmall", 32)):
        X = sets[data]
        for factor in (2.0, 1.7, 1.5, 1.4, 1.3, 1.2):
            for seed in SEEDS:
                with measured() as cost:
                    model = BinaryAutoencoder(bits, mu_factor=factor, validation=None, random_state=seed).fit(
                        X
                    )
                results.add(data=data, bits=bits, factor=factor, seed=seed, E_BA=total_error(model, X),
                            iterations=model.n_iter_, **cost)  # fmt: skip
            where = {"data": data, "bits": bits, "factor": factor}
            means = [results.mean(column, **where) for column in ("E_BA", "iterations", "cpu_seconds")]
            rows.append([data, bits, factor, *(f"{mean:.1f}" for mean in means)])
    return table(["data", "bits", "mu_factor", "E_BA", "iterations", "CPU s"], rows)


def retrieval(results: Results) -> str:
    """Trained on learn; rows 0 to 499 of base are queries, the rest is searched; K = k = 50."""
    X, base = siftsmall(), siftsmall("base")
    queries, base = base[:500], base[500:]
    truth = ground_truth(base, queries, 50)
    authors = {16: 0.160, 32: 0.278}
    methods: dict[str, Callable[[int, int], ITQ | BinaryAutoencoder]] = {
        "ITQ": lambda bits, seed: ITQ(bits, random_state=seed),
        "BA": lambda bits, seed: BinaryAutoencoder(bits, random_state=seed),
        "BA, no validation": lambda bits, seed: BinaryAutoencoder(bits, random_state=seed, validation=None),
        "BA, mu_factor=2": lambda bits, seed: BinaryAutoencoder(bits, random_state=seed, mu_factor=2),
    }
    for bits in authors:
        for name, make in methods.items():
            for seed in SEEDS:
                model = make(bits, seed).fit(X)
                ranking = hamming_ranking(model.encode(base), model.encode(queries), truth, bits)
                results.add(
                    method=name, bits=bits, seed=seed, precision=precision_recall_at_k(ranking, 50).precision
                )
    rows = [
        [name, *(f"{results.mean('precision', method=name, bits=bits):.3f}" for bits in authors)]
        for name in methods
    ]
    rows.insert(1, ["the authors' code", *(f"{value:.3f}" for value in authors.values())])
    return table(["method", *(f"{bits} bits" for bits in authors)], rows)


def validation(results: Results) -> str:
    """Validation stop on, five seeds: precision by μ."""
    mnist = np.load(data_folder() / "mnist" / "train_images.npy").reshape(60000, -1)
    parts = []
    for data, X in (("siftsmall", siftsmall()), ("mnist", mnist)):
        for bits in (16, 32):
            rows = []
            for seed in range(5):
                with measured() as cost:
                    model = BinaryAutoencoder(bits, random_state=seed).fit(X)
                path = [(record.mu, record.precision, record.kept) for record in model.history_]
                results.add(data=data, bits=bits, seed=seed, path=path, **cost)
                kept = max(i for i, step in enumerate(path) if step[2])
                if path[kept][1] < path[0][1]:
                    raise SystemExit("the model kept is worse than the first record")
                shown = [f"{path[i][1]:.4f}" if i < len(path) else "" for i in range(0, 14, 2)]
                rows.append(
                    [
                        seed,
                        *shown,
                        f"**{path[kept][1]:.4f}** at {path[kept][0]:.3f}",
                        f"{cost['cpu_seconds']:.0f}",
                    ]
                )
            head = ["seed", *(f"μ={path[0][0] * 1.4**i:.3f}" for i in range(0, 14, 2)), "kept", "CPU s"]
            parts.append(f"{data}, {bits} bits\n\n" + table(head, rows))
            print(parts[-1], flush=True)
    return "\n\n".join(parts)


def zsteps(results: Results) -> str:
    """The Z steps of one path on digits at 12 bits, the paper's enumeration with each switch off in turn."""
    X = digits()
    switches = ("theorem_4_3", "running_bound", "incremental", "optimality")
    settings = {"all on": {}} | {f"{name} off": {name: False} for name in switches}
    settings |= {"all off": dict.fromkeys(switches, False)}
    runs = {name: ("enumerate", options) for name, options in settings.items()}
    runs |= {"branch and bound": ("exact", {}), "alternating": ("alternating", {})}
    for name, (solver, options) in runs.items():
        model = BinaryAutoencoder(
            12, z_solver=solver, z_options=options, mu_factor=2, validation=None, random_state=0
        ).fit(X)
        counts = {
            count: sum(getattr(record, count) for record in model.history_)
            for count in ("pruned", "certified", "codes_evaluated", "dimensions_evaluated")
        }
        results.add(setting=name, points=len(X) * model.n_iter_, E_BA=total_error(model, X), **counts)
    columns = ("setting", "points", "pruned", "certified", "codes_evaluated", "dimensions_evaluated", "E_BA")
    rows = [[row[c] if c == "setting" else f"{row[c]:,.0f}" for c in columns] for row in results.rows]
    return table([column.replace("_", " ") for column in columns], rows)


def groups(results: Results) -> str:
    """µs per row of the Z steps of a fit, at the first μ, in the middle and at the end, accelerated or not.

    2,000 rows of MNIST, 16 bits, from AGH; alternation from the old codes; one thread, the least of three.
    """
    X = np.load(data_folder() / "mnist" / "train_images.npy")[:2000].reshape(2000, -1)
    off = dict.fromkeys(("running_bound", "incremental", "optimality"), False)
    rows = []
    for g in (1, 2, 4, 8, 16):
        for accelerated in (True, False):
            for repeat in range(3):
                model = BinaryAutoencoder(
                    16, init="agh", mu_factor=2, validation=None, random_state=0, n_jobs=1, group_size=g,
                    z_solver="alternating", z_start="warm", z_options={} if accelerated else off,
                ).fit(X)  # fmt: skip
                path = model.history_
                for when, record in {
                    "first": path[0],
                    "middle": path[len(path) // 2],
                    "last": path[-1],
                }.items():
                    results.add(g=g, accelerated=accelerated, repeat=repeat, when=when, mu=record.mu,
                                us=1e6 * record.seconds_z / len(X), E_BA=total_error(model, X))  # fmt: skip
        least = [
            f"{results.least('us', g=g, accelerated=on, when=when):.1f}"
            for when in ("first", "middle", "last")
            for on in (True, False)
        ]
        rows.append([g, *least])
    return table(
        ["g", *(f"{when}{how}" for when in ("first", "middle", "last") for how in ("", ", off"))], rows
    )


def conditions(results: Results) -> str:
    """Points that theorem 4.3 settles or each condition by itself proves; then µs per point with each.

    All Z steps of fits with μ doubled; one thread, the least of five.
    """
    sets = {"none": [], **{name: [name] for name in ("beck", "jeyakumar", "xia")},
            "beck and jeyakumar": ["beck", "jeyakumar"], "all": True}  # fmt: skip
    shares, times = [], []
    for data, X in (("digits", digits()), ("siftsmall", siftsmall_scaled())):
        for bits in (16, 32):
            for _ in range(5):
                for name, optimality in sets.items():
                    model = BinaryAutoencoder(
                        bits, mu_factor=2, validation=None, random_state=0, n_jobs=1,
                        z_options={"optimality": optimality},
                    ).fit(X)  # fmt: skip
                    path = [(record.mu, record.pruned, record.certified) for record in model.history_]
                    us = 1e6 * sum(record.seconds_z for record in model.history_) / (len(X) * len(path))
                    results.add(data=data, bits=bits, conditions=name, path=path, us=us,
                                E_BA=total_error(model, X))  # fmt: skip
            paths = {name: results.where(data=data, bits=bits, conditions=name)[0]["path"] for name in sets}
            for i, (mu, pruned, _) in enumerate(paths["none"]):
                proven = [f"{paths[name][i][2] / len(X):.1%}" for name in ("beck", "jeyakumar", "xia")]
                shares.append([data, bits, f"{mu:g}", f"{pruned / len(X):.1%}", *proven])
            least = [f"{results.least('us', data=data, bits=bits, conditions=name):.2f}" for name in sets]
            times.append([data, bits, *least])
    return "\n\n".join([
        table(["data", "bits", "μ", "theorem 4.3", "beck", "jeyakumar", "xia"], shares),
        table(["data", "bits", *sets], times),
    ])  # fmt: skip


def starts(results: Results) -> str:
    """Where MAC ends by where it starts, without validation; E_BA with the largest range made 1."""
    sift, base = siftsmall(), siftsmall("base")
    queries, base = base[:500], base[500:]
    truth = ground_truth(base, queries, 50)
    unit = float(np.ptp(sift.astype(np.float32), axis=0).max()) ** 2
    rows = []
    for data, bits in (("digits", 8), ("digits", 16), ("digits", 32), ("siftsmall", 16), ("siftsmall", 32)):
        for start in ("one rotation of ITQ", "itq", "tpca"):
            found = []
            for seed in range(10 if data == "digits" else 3):
                init = ITQ(bits, n_iter=200, random_state=seed) if "rotation" in start else start
                model = BinaryAutoencoder(bits, init=init, validation=None, random_state=seed)
                row = {"data": data, "bits": bits, "start": start, "seed": seed}
                if data == "digits":
                    row["E_BA"] = total_error(model.fit(digits()), digits())
                else:
                    row["E_BA"] = total_error(model.fit(sift), sift) / unit
                    ranking = hamming_ranking(model.encode(base), model.encode(queries), truth, bits)
                    row["precision"] = precision_recall_at_k(ranking, 50).precision
                results.add(**row)
                found.append(row)
            errors = [row["E_BA"] for row in found]
            precision = f"{np.mean([row['precision'] for row in found]):.3f}" if data == "siftsmall" else ""
            spread = f"{min(errors):.1f} to {max(errors):.1f}"
            rows.append([data, bits, start, f"{np.mean(errors):.1f}", spread, precision])
    return table(["data", "bits", "start", "mean E_BA", "by seed", "precision"], rows)


BENCHMARKS = {
    job.__name__: job for job in (error, schedule, starts, retrieval, validation, zsteps, groups, conditions)
}

if __name__ == "__main__":
    run("core", BENCHMARKS)
