"""`fit`, `encode`, `decode`, `info`: making models and codes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from auxbit.cli import options as opt
from auxbit.cli import output
from auxbit.cli.options import choice, refuse
from auxbit.hashers.registry import keeps_checkpoints, parameters_of


def fit(
    context: typer.Context,
    data: opt.Data,
    out: Annotated[str, Option("--out", "-o", help="The model file to write.")],
    method: opt.Method = "ba",
    bits: opt.OptionalBits = None,
    preset: Annotated[str | None, Option(
        metavar="default|paper", show_default="default",
        help="ba and bfa: the defaults of the options below; paper: the settings of the paper, which are "
        "slower."
    )] = None,
    init: Annotated[str | None, Option(
        metavar="itq|agh|tpca|bfa|lsh|random|auto", show_default="itq for ba, tpca for bfa",
        help="ba and bfa: the codes to start from; auto: those with the lowest error on a sample."
    )] = None,
    mu0: Annotated[float | None, Option(
        show_default="0.01, or by the data", help="ba: the first penalty μ."
    )] = None,
    mu_factor: Annotated[float | None, Option(
        show_default="1.4", help="ba: μ grows by this factor; nearer to 1 is slower and better."
    )] = None,
    validation: Annotated[str | None, Option(
        metavar="auto|none", show_default="auto",
        help="ba: auto keeps the μ with the best precision on a tenth of the rows; none runs to the end."
    )] = None,
    max_iter: Annotated[int | None, Option(
        show_default="50 for ba and bfa", help="ba, bfa and sph: the maximal number of iterations."
    )] = None,
    z_solver: Annotated[str | None, Option(
        metavar="auto|exact|enumerate|alternating", show_default="auto",
        help="ba and bfa: how codes are optimised; auto is exact up to 16 bits and alternating above."
    )] = None,
    encoder: Annotated[str | None, choice(
        "linear", "rbf", show_default="linear", help="ba and bfa: the input of the hash functions. linear: "
        "the row; rbf: also Gaussian features of 1,000 centres, which finds more and is slower."
    )] = None,
    h_solver: Annotated[str | None, Option(
        metavar="svm|ridge", show_default="svm",
        help="ba: how hash functions are fitted; ridge is least squares, which takes half the passes over "
        "data."
    )] = None,
    before: Annotated[str | None, Option(
        "--from", metavar="MODEL", help="ba and bfa: start from this model, such as one of fewer rows."
    )] = None,
    labels: Annotated[str | None, Option(
        metavar="FILE", help="ba: a file with a label for each row (.npy, or .txt, one per line); rows with "
        "the same label get similar codes."
    )] = None,
    coding: Annotated[str | None, choice(
        "hash", "optimal", show_default="hash", help="The codes that the decoder is fitted to. hash: codes "
        "h(x), for Hamming distance; optimal: the codes from which the decoder reconstructs rows best, for "
        "search by the decoder, which finds more."
    )] = None,
    mu: Annotated[float | None, Option(show_default="0, for optimal codes", help=opt.MU_HELP)] = None,
    decoder: opt.Decoder = None,
    lists: Annotated[str | None, Option(
        metavar="N|auto|none", show_default="none", help="Divide optimal codes into lists, so that a search "
        "reads only those near the query; auto: from 500,000 rows on."
    )] = None,
    refine_bits: opt.RefineBits = 0,
    metric: opt.Metric = "euclidean",
    memory: Annotated[str | None, Option(
        metavar="BYTES",
        help="Train out of core with at most this much memory, such as 1GB; DATA may be larger."
    )] = None,
    checkpoint: Annotated[str | None, Option(
        metavar="FOLDER",
        help="ba and bfa: train out of core, and save the state in this folder after each iteration."
    )] = None,
    resume: Annotated[bool, Option(
        "--resume", help="Resume from the state in --checkpoint, if there is one."
    )] = False,
    dask: Annotated[str | None, Option(
        metavar="ADDRESS", help="Train on a Dask cluster, whose workers read DATA; the address of the "
        "scheduler, such as tcp://host:8786."
    )] = None,
    seed: opt.Seed = 0,
    jobs: opt.Jobs = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Learn a model from vectors."""
    parameters = applicable(
        method, preset=preset, init=init, mu0=mu0, mu_factor=mu_factor, max_iter=max_iter, z_solver=z_solver,
        validation=validation, encoder=encoder, h_solver=h_solver,
    )  # fmt: skip
    refuse(
        before is not None and not keeps_checkpoints(method),
        "--from",
        f"it does not apply to --method {method}.",
    )
    refuse(labels is not None and method != "ba", "--labels", f"it does not apply to --method {method}.")
    out_of_core = _out_of_core(method, memory=memory, checkpoint=checkpoint, resume=resume or None, dask=dask)
    with output.resumable(context, checkpoint, "--resume"), output.Stages() as stages:
        from auxbit.hashers.files import fit_file, parameters_for

        summary = fit_file(
            data, out, method, bits, seed=seed, coding=coding, mu=mu, decoder=decoder,
            lists=None if lists is None else opt.lists_of(lists), refine_bits=refine_bits, overwrite=force,
            scheduler=dask, progress=stages, out_of_core=out_of_core, before=before, labels=labels,
            n_jobs=jobs, **parameters, **parameters_for(metric),
        )  # fmt: skip
    if json:
        output.print_json(summary)
        return
    what = (
        f"{summary['method']}, {summary['n_bits']} bits, to {summary['n_rows']:,} × {summary['n_features']}"
    )
    some = f" ({summary['measured_rows']:,} rows)" if summary["measured_rows"] < summary["n_rows"] else ""
    output.print_facts(
        [
            ("model", summary["model"]),
            ("fitted", what),
            ("seconds", summary["seconds"]),
            ("iterations", summary["iterations"]),
            *([("passes", summary["passes"])] if summary["passes"] else []),
            (output.error_label(summary["metric"]), summary["reconstruction_error"]),
            ("effective bits", effective(summary) + some),
        ]
    )
    output.say_next("encode", out, data, "--out", "codes.npy")


def encode(
    model: opt.Model,
    data: opt.Data,
    out: opt.NpyOut,
    unpacked: Annotated[
        bool, Option("--unpacked", help="One column of 0 and 1 for each bit instead of packed bytes.")
    ] = False,
    coding: opt.Coding = None,
    mu: opt.Mu = None,
    queries: Annotated[bool, Option(
        "--queries", help="The vectors are queries, whose codes differ from those of rows for inner products."
    )] = False,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Turn vectors into codes."""
    from auxbit.hashers.files import encode_file
    from auxbit.hashers.registry import load

    with output.Stages() as stages:
        done = encode_file(
            load(model), data, out, unpacked=unpacked, coding=coding, mu=mu, queries=queries,
            overwrite=force, progress=stages,
        )  # fmt: skip
    if json:
        output.print_json(done)
        return
    output.say(
        f"{out}: {done['n_rows']:,} {done['coding']} codes of {done['n_bits']} bits, "
        f"{done['bytes_per_row']} bytes each"
    )
    if not unpacked:
        output.say_next("search", model, "--base", out, "--queries", data)


def decode(
    model: opt.Model,
    codes: Annotated[str, Argument(metavar="CODES", help="An .npy file of codes, as written by encode.")],
    out: opt.NpyOut,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:
    """Turn codes back into approximate vectors."""
    from auxbit.hashers.files import decode_file
    from auxbit.hashers.registry import load

    with output.Stages() as stages:
        done = decode_file(load(model), codes, out, overwrite=force, progress=stages)
    if json:
        output.print_json(done)
    else:
        output.say(f"{out}: {done['n_rows']:,} vectors of {done['n_features']} dimensions, float32")


def info(
    file: Annotated[str, Argument(
        metavar="FILE", help="A model, an index, a file of vectors or the folder of a collection."
    )],
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Describe a model, index, data file or collection."""
    from auxbit.core.files import format_of

    kind, facts = format_of(file), dict[str, Any]()
    if Path(file).is_dir():
        from auxbit import Collection

        with Collection.open(file, read_only=True) as collection:
            facts = {"file": file, "kind": "collection"} | collection.describe()
            facts |= {"megabytes": round(collection.n_bytes / 1e6, 3)}
            del facts["collection"]
    elif kind == "auxbit index":
        from auxbit.index import HammingIndex

        index = HammingIndex.load(file)
        decoder = "none" if index.decoder is None else type(index.decoder).__name__
        facts = {"file": file, "kind": "index", "codes": len(index), "bits": index.n_bits}
        facts |= {"search": index.kind, "coding": index.coding, "mu": index.mu, "decoder": decoder}
        facts |= {"lists": index.n_lists} if index.n_lists else {}
        facts |= {"model": index.model or "not known"}
    elif kind or Path(file).suffix.lower() == ".safetensors":
        from auxbit.hashers.files import describe_model

        facts = describe_model(file)
    else:
        from auxbit.data.vectors import describe_vectors

        facts = describe_vectors(file)
    if json:
        output.print_json(facts)
    else:
        output.print_facts((_name(name), _value(value)) for name, value in facts.items())


def applicable(method: str, **options: Any) -> dict[str, Any]:
    """The options that were given as parameters of the estimator, if the method has them."""
    given = {name: value for name, value in options.items() if value is not None}
    known = parameters_of(method) if given else {}
    for name in given:
        option = f"--{name.replace('_', '-')}"
        refuse(name not in known, option, f"it does not apply to --method {method}.")
    if given.get("validation") == "none":
        given["validation"] = None
    return given


def effective(result: dict[str, Any]) -> str:
    """The effective bits of codes, and the most that there could be."""
    return f"{result['effective_bits']:.2f} of at most {result['effective_bits_bound']:.2f}"


def _out_of_core(method: str, **options: Any) -> dict[str, Any]:
    """How rows are read, of those that are not read into memory."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in given.keys() & {"checkpoint", "resume"}:
        refuse(not keeps_checkpoints(method), f"--{name}", f"it does not apply to --method {method}.")
    needs = "it needs the folder to resume from: --checkpoint FOLDER."
    refuse("resume" in given and "checkpoint" not in given, "--resume", needs)
    both = "dask" in given and "checkpoint" in given
    refuse(both, "--checkpoint", "it does not go with --dask: codes stay with its workers.")
    given.pop("dask", None)
    return given


def _name(name: str) -> str:
    return name.replace("_", " ") if name.islower() else name


def _value(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{key}={output.number(item)}" for key, item in value.items()) or "none"
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else value
