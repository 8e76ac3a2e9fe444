"""`fit`, `encode`, `decode`, `info`: making models and codes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from auxbit.cli import output
from auxbit.errors import InvalidParameter
from auxbit.hashers.registry import HASHER_NAMES, find_method, parameters_of

DATA_HELP = (
    "A file of vectors: .npy, .npz, .fvecs, .bvecs, .ivecs, .parquet, .h5; one of several arrays as "
    "file.npz:name. Or the word digits: scikit-learn's handwritten digits."
)
MODEL_HELP = "A model file, as written by fit."

Data = Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP, show_default=False)]
Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]
Coding = Annotated[
    str,
    typer.Option(
        metavar="hash|optimal",
        help="Codes h(x), or those from which the decoder reconstructs rows best, for --asymmetric search.",
    ),
]
Mu = Annotated[
    float, typer.Option(help="How much optimal codes are held to h(x): 0 not at all, large wholly.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what exists.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else on stdout.")]
Jobs = Annotated[int | None, typer.Option(help="Threads; all cores unless given.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    for command in (fit, encode, decode, info):
        app.command()(command)


def _method(name: str) -> str:
    try:
        find_method(name, HASHER_NAMES)
    except InvalidParameter as error:
        raise typer.BadParameter(str(error)) from error
    return name.lower()


def fit(
    context: typer.Context,
    data: Data,
    out: Annotated[str, typer.Option("--out", "-o", help="The model file to write.", show_default=False)],
    method: Annotated[
        str,
        typer.Option(metavar="|".join(HASHER_NAMES), callback=_method, help="How codes are learned."),
    ] = "ba",
    bits: Annotated[int, typer.Option(help="Bits a code, 1 to 1024.")] = 32,
    init: Annotated[
        str | None,
        typer.Option(
            metavar="itq|agh|tpca|lsh|random",
            help="The codes that ba and bfa start from. ba starts from itq, bfa from tpca.",
            show_default=False,
        ),
    ] = None,
    mu0: Annotated[
        float | None, typer.Option(help="ba: the first penalty μ; 0.01 unless given.", show_default=False)
    ] = None,
    mu_factor: Annotated[
        float | None,
        typer.Option(
            help="ba: μ grows by this factor; nearer to 1 is slower and better.", show_default=False
        ),
    ] = None,
    validation: Annotated[
        str | None,
        typer.Option(
            metavar="auto|none",
            help="ba: auto keeps the μ with the best precision on a tenth of the rows; none runs to the end.",
            show_default=False,
        ),
    ] = None,
    max_iter: Annotated[
        int | None, typer.Option(help="ba, bfa and sph: iterations at most.", show_default=False)
    ] = None,
    z_solver: Annotated[
        str | None,
        typer.Option(
            metavar="auto|exact|enumerate|alternating",
            help="ba and bfa: how codes are optimised; auto is exact to 16 bits and alternating above.",
            show_default=False,
        ),
    ] = None,
    h_solver: Annotated[
        str | None,
        typer.Option(
            metavar="svm|ridge",
            help="ba: how hash functions are fitted; ridge is least squares, and takes half of the passes.",
            show_default=False,
        ),
    ] = None,
    decoder: Annotated[
        str | None,
        typer.Option(
            metavar="linear|tables",
            help="ba and bfa: tables fit a vector to each value of each byte, for asymmetric search.",
            show_default=False,
        ),
    ] = None,
    normalize: Annotated[
        bool,
        typer.Option("--normalize", help="ba and bfa: divide rows by their norm, for cosine neighbours."),
    ] = False,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="ba: read DATA by passes, holding no more than this, as 1GB; it may be larger than memory.",
            show_default=False,
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="ba: read DATA by passes, and keep the state after each step in this folder.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the state in --checkpoint, if there is one.")
    ] = False,
    dask: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="ba: train on the Dask cluster of a scheduler, as tcp://host:8786; its workers read DATA.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same model. 0 to 4294967295.")] = 0,
    jobs: Jobs = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Learn a model from vectors."""
    from auxbit.cli import tasks

    by_passes = _by_passes(method, memory, checkpoint, resume, dask)
    given = {
        "init": init, "mu0": mu0, "mu_factor": mu_factor, "max_iter": max_iter, "z_solver": z_solver,
        "normalize": normalize or None, "validation": validation, "decoder": decoder, "h_solver": h_solver,
    }  # fmt: skip
    options = _applicable(method, {name: value for name, value in given.items() if value is not None})
    options |= {"random_state": seed, "n_jobs": jobs}
    with (
        output.going_on(context, "--resume", possible=checkpoint is not None),
        output.progress(f"fitting {method}", _most_iterations(method, options), time_left=False) as bar,
    ):

        def show(record: Any, passes: int | None) -> None:
            bar.show(done=record.iteration, detail=_detail(record, passes))

        reports = "callback" in parameters_of(method)
        summary = tasks.fit_file(
            data, out, method, bits, options, force=force, by_passes=by_passes, show=show if reports else None
        )
    if json:
        output.print_json(summary)
        return
    output.print_facts(
        [
            ("model", summary["model"]),
            (
                "fitted",
                f"{summary['method']}, {bits} bits, to {summary['n_rows']:,} × {summary['n_features']}",
            ),
            ("seconds", summary["seconds"]),
            ("iterations", summary["iterations"]),
            *([("passes", summary["passes"])] if summary["passes"] else []),
            (output.error_label(summary), summary["reconstruction_error"]),
            ("effective bits", _effective(summary)),
        ]
    )
    coding = ["--coding", "optimal"] if summary["coding"] == "optimal" else []
    output.say_next("encode", out, data, "--out", "codes.npy", *coding)


def encode(
    model: Model,
    data: Data,
    out: Annotated[str, typer.Option("--out", "-o", help="The .npy file to write.", show_default=False)],
    unpacked: Annotated[
        bool, typer.Option("--unpacked", help="A column of 0 and 1 for each bit instead of packed bytes.")
    ] = False,
    coding: Coding = "hash",
    mu: Mu = 0.0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Turn vectors into codes, block by block."""
    from auxbit.cli import tasks

    tasks.check_output(out, force=force, suffix=".npy")
    hasher, X = tasks.load_model(model), tasks.read(data)
    with output.progress("encoding", len(X)) as bar:
        done = tasks.encode_file(
            hasher, data, X, out, unpacked=unpacked, coding=coding, mu=mu, force=force, advance=bar.advance
        )
    if json:
        output.print_json(done)
        return
    output.say(
        f"{out}: {done['n_rows']:,} codes of {done['n_bits']} bits, {done['bytes_per_row']} bytes each"
    )
    if not unpacked:
        by_decoder = ["--asymmetric"] if coding == "optimal" else []
        output.say_next("search", model, "--base", out, "--queries", data, *by_decoder)


def decode(
    model: Model,
    codes: Annotated[
        str, typer.Argument(metavar="CODES", help="An .npy file of codes, as written by encode.")
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="The .npy file to write.", show_default=False)],
    force: Force = False,
    json: Json = False,
) -> None:
    """Turn codes back into approximate vectors, block by block."""
    from auxbit.cli import tasks

    tasks.check_output(out, force=force, suffix=".npy")
    hasher, packed = tasks.load_model(model), tasks.read(codes)
    with output.progress("decoding", len(packed)) as bar:
        done = tasks.decode_file(hasher, codes, packed, out, force=force, advance=bar.advance)
    if json:
        output.print_json(done)
    else:
        output.say(f"{out}: {done['n_rows']:,} vectors of {done['n_features']} dimensions, float32")


def info(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A model, an index or a file of vectors.", show_default=False),
    ],
    json: Json = False,
) -> None:
    """Say what a model, index or data file is."""
    from auxbit.cli import describe

    facts = describe.describe(file)
    if json:
        output.print_json(facts)
    else:
        output.print_facts(describe.as_lines(facts))


def _applicable(method: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options as parameters of the estimator, or which of them the method does not have."""
    for name in options.keys() - parameters_of(method).keys():
        raise typer.BadParameter(
            f"it does not apply to --method {method}.", param_hint=f"--{name.replace('_', '-')}"
        )
    if options.get("validation") == "none":
        options["validation"] = None
    return options


def _most_iterations(method: str, options: dict[str, Any]) -> float | None:
    """How far the bar can go, where the method tells of its iterations."""
    parameters = parameters_of(method) | options
    most: float | None = parameters["max_iter"] if "callback" in parameters else None
    return most


def _by_passes(
    method: str, memory: str | None, checkpoint: str | None, resume: bool, dask: str | None
) -> dict[str, Any]:
    """How rows are to be read by passes, if they are."""
    given = {"memory": memory, "checkpoint": checkpoint, "resume": resume or None, "dask": dask}
    given = {name: value for name, value in given.items() if value is not None}
    for name in given if method != "ba" else ():
        raise typer.BadParameter(f"it does not apply to --method {method}.", param_hint=f"--{name}")
    if resume and checkpoint is None:
        raise typer.BadParameter(
            "it needs the folder to go on from: --checkpoint FOLDER.", param_hint="--resume"
        )
    if dask is not None and checkpoint is not None:
        raise typer.BadParameter("it does not go with --dask: codes stay there.", param_hint="--checkpoint")
    return given


def _detail(record: Any, passes: int | None = None) -> str:
    precision = "" if record.precision is None else f"  precision {record.precision:.3f}"
    read = "" if passes is None else f"  passes {passes}"
    return f"iteration {record.iteration}  μ {record.mu:.3g}  E_BA {record.E_BA:.4g}{precision}{read}"


def _effective(summary: dict[str, Any]) -> str:
    some = f" ({summary['measured_rows']:,} rows)" if summary["measured_rows"] < summary["n_rows"] else ""
    return f"{summary['effective_bits']:.2f} of at most {summary['effective_bits_bound']:.2f}{some}"
