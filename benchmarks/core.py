"""The figures of docs/training.md: `python benchmarks/core.py NAME`, raw results in docs/results/.

error       E_BA on digits and siftsmall against the authors' own code
schedule    how the growth of μ changes E_BA and time
starts      how the first codes change E_BA, on seven real sets
retrieval   precision on siftsmall against ITQ and the authors' code
validation  precision by μ on MNIST and siftsmall, and that the model kept is never below the first record
misses      three readings of what follows a μ that does not raise the validation precision
zsteps      what each acceleration of the paper's enumeration saves
groups      what the accelerations save inside groups of bits
conditions  how many codes each condition of appendix A proves global, and what it costs
synthetic   validation precision of BA, its start and ITQ on rows with outliers, heavy tails, clusters
real        the same on seven real sets, 8 to 128 bits
hamming     BA against ITQ at 16 to 512 bits, on queries that no fit has seen
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np

from auxbit import ITQ, BinaryAutoencoder
from auxbit.data import datasets
from auxbit.errors import FileProblem
from auxbit.evaluate import ground_truth, hamming_ranking, precision_recall_at_k
from auxbit.mac.loop import neighbours_to_find
from real_data import AUTHORS_ERROR, digits, sift_photos, siftsmall, siftsmall_scaled, total_error
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
                itq = ITQ(bits, random_state=seed).fit(X)
                plain = BinaryAutoencoder(bits, init=itq, mu_factor=2, validation=None, random_state=seed)
                results.add(data=data, bits=bits, seed=seed, E_BA=total_error(model, X),
                            E_ITQ=total_error(itq, X), E_start=model.history_[0].E_BA,
                            E_plain=total_error(plain.fit(X), X), iterations=model.n_iter_,
                            **cost)  # fmt: skip
            columns = ("E_ITQ", "E_start", "E_plain", "E_BA", "iterations", "cpu_seconds")
            means = [results.mean(column, data=data, bits=bits) for column in columns]
            errors = [f"{mean:.1f}" for mean in means[:4]]
            rows.append([data, bits, errors[0], AUTHORS_ERROR[data, bits], *errors[1:3], f"**{errors[3]}**",
                         f"{means[4]:.0f}", f"{means[5]:.1f}"])  # fmt: skip
    head = [
        "data",
        "bits",
        "ITQ",
        "authors' code",
        "our start by itself",
        "BA from plain ITQ, μ doubled",
        "BA",
    ]
    return table([*head, "iterations", "CPU s"], rows)


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
        "our start by itself": lambda bits, seed: BinaryAutoencoder(
            bits, random_state=seed, validation=None, max_iter=1
        ),
        "BA from plain ITQ, μ doubled": lambda bits, seed: BinaryAutoencoder(
            bits, init=ITQ(bits, random_state=seed), mu_factor=2, random_state=seed
        ),
        "BA": lambda bits, seed: BinaryAutoencoder(bits, random_state=seed),
        "BA, no validation": lambda bits, seed: BinaryAutoencoder(bits, random_state=seed, validation=None),
        "BA, mu_factor=2": lambda bits, seed: BinaryAutoencoder(bits, random_state=seed, mu_factor=2),
    }
    for bits in authors:
        for name, make in methods.items():
            for seed in SEEDS:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # one iteration does not end the path
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
    """Where MAC ends by where it starts: E_BA without validation, 10,000 rows at most, seeds as said."""
    named = ("one rotation of ITQ", "itq", "agh", "tpca", "bfa", "auto")
    rows = []
    for data, X in real_sets(10_000).items():
        for bits in (8, 16, 32):
            for start, seed in product(named, range(5 if data == "digits" else 2)):
                init = ITQ(bits, n_iter=200, random_state=seed) if "rotation" in start else start
                with measured() as cost:
                    model = BinaryAutoencoder(bits, init=init, validation=None, random_state=seed).fit(X)
                error = total_error(model, X) / model.scaling_.scale**2
                results.add(data=data, bits=bits, start=start, seed=seed, E_BA=error, **cost)
            errors = [results.mean("E_BA", data=data, bits=bits, start=start) for start in named]
            least = min(errors)
            shown = [f"**{error:.1f}**" if error == least else f"{error:.1f}" for error in errors]
            rows.append([data, bits, *shown])
            print(rows[-1], flush=True)
    return table(["data", "bits", *named], rows)


def misses(results: Results) -> str:
    """The paper's preset: validation precision by what follows a μ that does not raise it (iterations)."""
    readings: dict[str, dict[str, object]] = {
        "it is undone": {},
        "the path continues": {"on_miss": "continue"},
        "the path ends": {"on_miss": "continue", "patience": 1},
    }
    rows = []
    for (data, X), bits in product({"digits": digits(), "siftsmall": siftsmall()[:10_000]}.items(), (16, 32)):
        cells = []
        for reading, options in readings.items():
            for seed in SEEDS:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of a start that is better than any linear function
                    model = BinaryAutoencoder(bits, preset="paper", random_state=seed, **options).fit(X)
                best = max(record.precision or 0.0 for record in model.history_)
                results.add(data=data, bits=bits, reading=reading, seed=seed, precision=best, n=model.n_iter_)
            where = {"data": data, "bits": bits, "reading": reading}
            cells.append(f"{results.mean('precision', **where):.4f} ({results.mean('n', **where):.0f})")
        rows.append([data, bits, *cells])
    return table(["data", "bits", *readings], rows)


def real_sets(n: int) -> dict[str, np.ndarray]:
    """At most n rows of each real set; text embeddings with norm 1; CIFAR-10 if it is there."""
    outlier = digits().copy()
    outlier[5, 7] = 200 / 16
    words = np.load(data_folder() / "wordnet" / "base.npy", mmap_mode="r")[:n].astype(np.float32)
    words /= np.linalg.norm(words, axis=1, keepdims=True)
    images = np.load(data_folder() / "mnist" / "train_images.npy")[:n].reshape(n, -1)
    sets = {"digits": digits(), "digits, one outlier": outlier, "siftsmall": siftsmall()[:n], "mnist": images,
            "sift_photos": sift_photos(n), "wordnet": words}  # fmt: skip
    try:
        cifar = datasets.load("cifar10")
        some = replace(cifar, base=cifar.base[:n], queries=cifar.queries[:1], labels=None, query_labels=None)
        return sets | {"cifar10": some.vectors().base}
    except FileProblem as error:
        print(f"without cifar10: {error}")
    return sets


def synthetic_rows(kind: str, D: int, seed: int) -> np.ndarray:
    """2,000 rows of a kind that the paper's μ = 0.01 and C = 100 were not made for."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((D, D)) / np.sqrt(D)
    if kind.startswith("Student"):
        return rng.standard_t(int(kind[-2]), (2000, D)) @ mixing
    if kind == "log-normal":
        return np.exp(rng.standard_normal((2000, D)) @ mixing)
    if kind == "tight clusters":
        return 10 * rng.standard_normal((20, D))[rng.integers(0, 20, 2000)] + rng.normal(0, 0.3, (2000, D))
    return rng.standard_normal((2000, 8)) @ rng.standard_normal((8, D)) + rng.normal(0, 0.05, (2000, D))


def judged(results: Results, X: np.ndarray, bits: int, seed: int, **where: object) -> None:
    """Hold out queries, fit BA and ITQ to the rest, and note the precision of both and of BA's start."""
    order, n_queries = np.random.RandomState(seed).permutation(len(X)), min(len(X) // 10, 1000)
    queries, rows = X[order[:n_queries]], X[order[n_queries:]]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = BinaryAutoencoder(bits, validation=queries, random_state=seed).fit(rows)
    precisions = [record.precision or 0.0 for record in model.history_]
    K = neighbours_to_find(len(rows))
    truth = ground_truth(rows, queries, K)

    def precision(model: ITQ | BinaryAutoencoder) -> float:
        ranking = hamming_ranking(model.encode(rows), model.encode(queries), truth, bits)
        return precision_recall_at_k(ranking, K, ties="average").precision

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        itq = precision(ITQ(bits, random_state=seed).fit(rows)) if bits <= X.shape[1] else None
    silent = model.history_[0].changed == 0 and not any(
        "changed no bit" in str(each.message) for each in told
    )
    results.add(**where, bits=bits, seed=seed, start=precisions[0], BA=max(precisions), itq=itq, C=model.C_,
                mu0=model.history_[0].mu, changed=model.history_[0].changed, iterations=model.n_iter_,
                silent=silent, model=precision(model))  # fmt: skip


def judgement(results: Results) -> str:
    """How often BA is above its start and above ITQ."""
    rows = results.rows
    compared = [row for row in rows if row["itq"] is not None]
    below = sum(row["BA"] < row["start"] for row in rows)
    above = sum(row["BA"] > row["itq"] for row in compared)
    equal = sum(row["BA"] == row["itq"] for row in compared)
    still = sum(row["changed"] == 0 for row in rows)
    silent = sum(row["silent"] for row in rows)
    return (
        f"{len(rows)} fits: below its start in {below}, above ITQ in {above} and equal in {equal} of "
        f"{len(compared)}; {still} that could change nothing, {silent} of them in silence."
    )


def averaged(results: Results, names: tuple[str, ...]) -> str:
    """Means over seeds, a row per kind of rows and bits."""
    groups: dict[tuple[object, ...], list[dict]] = {}
    for row in results.rows:
        groups.setdefault(tuple(row[name] for name in (*names, "bits")), []).append(row)
    made = []
    for key, group in groups.items():
        means = [np.mean([row[name] for row in group]) for name in ("start", "BA")]
        itq = [row["itq"] for row in group if row["itq"] is not None]
        values = [f"{np.mean(itq):.3f}" if itq else "", f"{means[0]:.3f}", f"**{means[1]:.3f}**"]
        mu0, C = np.median([row["mu0"] for row in group]), np.median([row["C"] for row in group])
        made.append([*key, *values, f"{mu0:.2g}", f"{C:.3g}"])
    return table([*names, "bits", "ITQ", "BA's start", "BA", "first μ", "C"], made)


def synthetic(results: Results) -> str:
    """2,000 rows, a tenth held out as validation queries, K = k = 18, five seeds, medians of μ and C."""
    kinds = ("Student t(3)", "Student t(5)", "log-normal", "tight clusters", "low rank")
    for kind, D, bits in product(kinds, (50, 400), (8, 16, 32)):
        for seed in range(5):
            judged(results, synthetic_rows(kind, D, seed), bits, seed, rows=kind, D=D)
    return averaged(results, ("rows", "D")) + "\n\n" + judgement(results)


def real(results: Results) -> str:
    """A tenth held out as validation queries, at most 1,000; K = k = 1 % of the rows, 10 to 100; one seed."""
    for (name, X), bits in product(real_sets(20_000).items(), (8, 16, 32, 64, 128)):
        judged(results, X, bits, 0, data=name)
    return averaged(results, ("data",)) + "\n\n" + judgement(results)


def hamming(results: Results) -> str:
    """BA as it is by default against ITQ, precision at K = k = 50 of hash codes, ties averaged; 20,000 rows,
    1,000 queries that no fit has seen, one seed."""
    for name, X in real_sets(21_000).items():
        if name.startswith(("digits", "siftsmall")):
            continue
        order = np.random.RandomState(1).permutation(len(X))
        queries, rows = X[order[:1000]], X[order[1000:]]
        truth = ground_truth(rows, queries, 50)
        for bits in (each for each in (16, 32, 64, 128, 256, 512) if each <= X.shape[1]):
            found = {}
            for model in (ITQ(bits, random_state=0), BinaryAutoencoder(bits, random_state=0)):
                model.fit(rows)
                ranking = hamming_ranking(model.encode(rows), model.encode(queries), truth, bits)
                found[type(model).__name__] = precision_recall_at_k(ranking, 50, ties="average").precision
            results.add(data=name, bits=bits, itq=found["ITQ"], ba=found["BinaryAutoencoder"])
    lines = [
        (
            row["data"],
            row["bits"],
            f"{row['itq']:.3f}",
            f"{row['ba']:.3f}",
            f"{row['ba'] / row['itq'] - 1:+.1%}",
        )
        for row in results.rows
    ]
    return table(("data", "bits", "ITQ", "BA", "BA over ITQ"), lines)


BENCHMARKS = {
    job.__name__: job
    for job in (
        error,
        schedule,
        starts,
        retrieval,
        validation,
        misses,
        zsteps,
        groups,
        conditions,
        synthetic,
        real,
        hamming,
    )
}

if __name__ == "__main__":
    run("core", BENCHMARKS)
