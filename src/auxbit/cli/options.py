"""Options that several commands share, each declared once, and checks of options.

`show_default` with a text names the default of an option whose value is None if it is not given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer import Argument, Option

from auxbit.errors import InvalidParameter
from auxbit.hashers.registry import HASHER_NAMES, find_method


def refuse(wrong: object, option: str, why: str) -> None:
    """End with wrong usage of an option, if it is wrong."""
    if wrong:
        raise typer.BadParameter(why, param_hint=option)


def one_of(*allowed: str) -> Any:
    """A callback that refuses other values before any work."""

    def checked(value: str | None) -> str | None:
        if value is not None and value not in allowed:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(allowed)}.")
        return value

    return checked


def choice(*allowed: str, **more: Any) -> Any:
    """An option with one of a few values."""
    return Option(metavar="|".join(allowed), callback=one_of(*allowed), **more)


def words(text: str) -> list[str]:
    """A list of names, separated by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def integers(text: str, option: str = "--bits") -> Sequence[int]:
    """A list of integers, separated by commas."""
    try:
        return [int(word) for word in words(text)]
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a list of integers such as 8,16,32.", param_hint=option
        ) from None


def check_k_or_radius(k: int | None, radius: int | None, *by_vectors: tuple[str, object]) -> None:
    """Refuse a radius beside k, or beside options that rank by vectors."""
    refuse(k is not None and radius is not None, "--k", "give --k or --radius, not both.")
    for option, value in by_vectors:
        refuse(radius is not None and value, "--radius", f"a radius is of Hamming distance: drop {option}.")


def _method(name: str | None) -> str | None:
    if name is None:
        return None
    try:
        find_method(name, HASHER_NAMES)
        return name.lower()
    except InvalidParameter as error:
        raise typer.BadParameter(str(error)) from error


# ---- What goes in

DATA_HELP = (
    "A file of vectors: .npy, .npz, .fvecs, .bvecs, .ivecs, .parquet, .h5. If it has several arrays, write "
    "file.npz:name. The word digits stands for scikit-learn's handwritten digits."
)
RECORDS_HELP = (
    "A file of rows with columns: .parquet, .jsonl, .csv, .arrow; or of vectors alone: .npy, .npz, .fvecs, "
    ".bvecs, .ivecs, .h5. If it has several arrays, write file.npz:name. The word digits stands for "
    "scikit-learn's handwritten digits."
)
METADATA_HELP = "A file of metadata, one object per row: .jsonl, .json, .csv, .parquet or .arrow."
WHERE_HELP = (
    "Only items whose metadata match: 'lang=de and year>=2010', 'lang=de,en or not year<2010', "
    "'(label=cat or label=dog) and name^=start'. Operators: = != < <= > >= ~ (contains) ^= (starts with), "
    "label? (has the field), !label (does not have it), in and not in, as in 'year in (2001, 2002)'. A comma "
    "separates values, or conditions that must all match. Can be repeated; then all must match."
)

Data = Annotated[str, Argument(metavar="DATA", help=DATA_HELP)]
Model = Annotated[str, Argument(metavar="MODEL", help="A model file, as written by fit.")]
Folder = Annotated[str, Argument(metavar="DIR", help="The folder of the collection.")]
Queries = Annotated[str, Option("--queries", "-q", help=f"The rows to search for. {DATA_HELP}")]
RowsAreCodes = Annotated[
    bool, Option("--codes", help="The file contains codes, as written by encode, instead of vectors.")
]
Records = Annotated[str, Option("--data", "-d", metavar="FILE", help=f"The rows to add. {RECORDS_HELP}")]
VectorsColumn = Annotated[str | None, Option(
    "--vectors-column", metavar="NAME", show_default="the only column with lists of numbers",
    help="The column of the file with the vectors, or the columns with their numbers, x,y,z."
)]  # fmt: skip
IdColumn = Annotated[str | None, Option(
    "--id-column", metavar="NAME", help="The column of the file with the ids: integers or text."
)]  # fmt: skip
MetadataColumns = Annotated[str | None, Option(
    "--metadata-columns", metavar="NAME,…", show_default="all other columns",
    help="The columns of the file to keep as metadata; '' for none."
)]  # fmt: skip
Ids = Annotated[str | None, Option(
    "--ids", metavar="FILE", show_default="the next numbers",
    help="A file with an id for each row: .npy of integers or text, or .txt with one per line."
)]  # fmt: skip
IdList = Annotated[str | None, Option(
    "--ids", metavar="ID,…", help="Ids, separated by commas: 1,2,3 or doc-1,doc-2."
)]  # fmt: skip
IdsFile = Annotated[str | None, Option(
    "--ids-file", metavar="FILE", help="A file of ids: .npy of integers or text, or .txt with one per line."
)]  # fmt: skip
Metadata = Annotated[str | None, Option("--metadata", metavar="FILE", help=METADATA_HELP)]
Where = Annotated[list[str] | None, Option("--where", metavar="COND", help=WHERE_HELP)]
SkipDamaged = Annotated[bool, Option("--skip-damaged", help="Leave out items that are damaged on disk.")]

# ---- Models and codes

METHODS = "|".join(HASHER_NAMES)
SEED_HELP = "The same seed gives the same model. 0 to 4294967295."

Method = Annotated[str, Option(metavar=METHODS, callback=_method, help="How codes are learned.")]
OptionalMethod = Annotated[str | None, Option(
    "--method", metavar=METHODS, callback=_method, show_default="ba", help="How codes are learned."
)]  # fmt: skip
OtherMethod = Annotated[str | None, Option(
    "--method", metavar=METHODS, callback=_method, show_default="the current one", help="How codes are "
    "learned."
)]  # fmt: skip
Bits = Annotated[str, Option(metavar="N,…", help="Numbers of bits.")]
Seed = Annotated[int, Option(help=SEED_HELP)]
Memory = Annotated[str | None, Option(
    metavar="BYTES", help="Limit the memory for rows, such as 2GB, by smaller samples and batches."
)]  # fmt: skip
METRICS = ("euclidean", "cosine", "inner_product")
Metric = Annotated[str, choice(*METRICS, help="The metric whose nearest neighbours a search should find.")]
Coding = Annotated[str | None, choice(
    "hash", "optimal", show_default="that of the model's decoder",
    help="hash: codes h(x), for Hamming distance; optimal: the codes from which the decoder reconstructs "
    "rows best, for search by the decoder."
)]  # fmt: skip
MU_HELP = (
    "How near optimal codes must be to h(x): at 0 they are free, at large values they equal h(x). From 0.03 "
    "on they can be searched both by the decoder and by Hamming distance."
)
Mu = Annotated[float | None, Option(
    show_default="that of the model's decoder, which is 0 by default", help=MU_HELP
)]  # fmt: skip

Decoder = Annotated[str | None, choice(
    "auto", "linear", "tables", show_default="auto, for optimal codes", help="The decoder of optimal codes. "
    "linear: one vector per bit; tables: one per value of a byte, which needs many rows; auto: the one with "
    "the smaller error."
)]  # fmt: skip
Lists = Annotated[str | None, Option(
    metavar="N|auto|none", show_default="auto, if a decoder is fitted to optimal codes", help="Divide codes "
    "into lists, so that a search reads only those near the query; auto: from 500,000 rows on."
)]  # fmt: skip


RefineBits = Annotated[int, Option(
    "--refine-bits", metavar="N", show_default="0", help="With lists: bits of a second, finer code per row, "
    "which ranks the candidates again."
)]  # fmt: skip


def lists_of(given: str | None) -> str | int | None:
    """What --lists says, as Collection.create takes it."""
    if given is None or given == "auto":
        return "auto"
    if given == "none":
        return None
    refuse(not given.isdecimal(), "--lists", f"it is a number of lists, auto or none, not {given!r}.")
    return int(given)


OptionalBits = Annotated[int | None, Option(
    "--bits", metavar="N", show_default="about half of the dimensions, 16 to 256",
    help="Bits per code, 1 to 1024; lsh, itq and tpca make up to 8192."
)]  # fmt: skip

# ---- Searching and measuring

Nearest = Annotated[int | None, Option("--k", "-k", help="How many neighbours.", show_default="10")]
WithinRadius = Annotated[
    int | None, Option(help="All within this Hamming distance instead of the k nearest.")
]
Mode = Annotated[str | None, choice(
    "hamming", "asymmetric", show_default="asymmetric if codes are optimal, else hamming",
    help="hamming: rank by the number of bits in which codes differ; asymmetric: by the distance from the "
    "query vector to the decoded codes."
)]  # fmt: skip
Rerank = Annotated[int | None, Option(
    metavar="N", show_default="10 per neighbour, at least 100, if vectors are kept", help="Find this many "
    "candidates, and rank them by their vectors, if these are kept; 0: do not."
)]  # fmt: skip
Probes = Annotated[str | None, Option(
    metavar="N|all", show_default="as many as --recall needs", help="How many lists to search, if there are "
    "any."
)]  # fmt: skip
Recall = Annotated[float | None, Option(
    metavar="SHARE", show_default="0.98", help="With lists: search as many as are expected to contain this "
    "share of the true neighbours."
)]  # fmt: skip


def probes_of(given: str | None) -> str | int | None:
    """What --probes says, as searches take it."""
    if given is None or given == "all":
        return given
    refuse(not given.isdecimal(), "--probes", f"it is a number of lists or all, not {given!r}.")
    return int(given)


AnswersOut = Annotated[str | None, Option(
    "--out", "-o", metavar="FILE",
    help="Write all results: distances and ids to an .npz file, or with metadata to a .jsonl file."
)]  # fmt: skip
LikeItem = Annotated[str | None, Option("--id", metavar="ID", help="Search for items like this one.")]
TrueNeighbours = Annotated[int, Option("--K", help="How many true neighbours a query has.")]
Retrieved = Annotated[int, Option("--k", help="How many of the nearest codes are retrieved.")]
Radius = Annotated[int, Option(help="Hamming radius.")]
Seeds = Annotated[int, Option(min=1, help="How many seeds to average over.")]

# ---- What every command may have

NpyOut = Annotated[str, Option("--out", "-o", help="The .npy file to write.")]
Force = Annotated[bool, Option("--force", help="Overwrite existing files.")]
Json = Annotated[bool, Option("--json", help="Print one JSON document and nothing else on stdout.")]
JsonLines = Annotated[bool, Option("--json", help="Print one JSON object per item, one per line.")]
Jobs = Annotated[int | None, Option(help="Threads.", show_default="all cores")]
