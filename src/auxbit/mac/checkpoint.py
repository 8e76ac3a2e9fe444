"""A fit that can be resumed after a crash: its state after each iteration, in a folder beside the codes.

The state names the file of codes that belongs to it; the next iteration writes to the other one, and ends
with a state of its own. So whatever moment a process ends at, the last state on disk and its codes are whole.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.core import files
from auxbit.core.checks import Float64
from auxbit.core.features import RbfFeatures
from auxbit.core.files import Format, WriterLock, checksum
from auxbit.core.maps import Features, LinearEncoder, Scaling
from auxbit.errors import FileExists, FileProblem, InvalidInput
from auxbit.mac.loop import Record, Walk
from auxbit.mac.rows import KEPT, FileRows
from auxbit.mac.steps import State

NAME, LOCK = "state.safetensors", "fit.lock"
WALKED = ("best_precision", "least_error", "improved", "misses")
CONTENT = "content of X"  # what `about` calls a checksum, which would mean nothing to people
FORMAT = Format(
    "auxbit checkpoint", "checkpoint", 2, "the state of a fit",
    "Such states are made by fit(…, checkpoint=…).", FileProblem,
)  # fmt: skip


@dataclass(frozen=True)
class Prepared:
    """What a fit knows before its first iteration, and needs to resume. mu : a first μ for these rows."""

    scaling: Scaling
    gram: Float64
    held_out: npt.NDArray[np.int64] | None
    truth: npt.NDArray[np.int64] | None
    mu: float = 0.0
    features: Features | None = None


@dataclass(frozen=True)
class Resumed:
    """A state read back."""

    prepared: Prepared
    state: State
    walk: Walk
    C: float
    present: int  # which file of codes, and
    checksum: int  # of what is in it
    passes: int


class Checkpoint:
    """The folder of a fit. about : what must be the same for a fit to resume, as JSON."""

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        self.folder, self.about = folder, json.loads(json.dumps(about))
        self._lock = WriterLock(folder / LOCK)

    def open(self, *, resume: bool) -> Resumed | None:
        """The state to resume from, None if there is none; a folder with another fit's is refused.

        No other process can have the folder until `close`.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise FileProblem(f"{self.folder} is a file; expected a folder to keep the state of a fit in.")
        try:
            files.make_folder(self.folder)
        except OSError as error:
            raise FileProblem(f"{self.folder} could not be made: {error.strerror or error}.") from error
        self._lock.acquire(str(self.folder))
        self._sweep()
        found = self._read(resume)
        if found is not None and not resume:
            raise FileExists(
                f"{self.folder} holds the state of a fit. Resume it with resume=True, or remove the folder."
            )
        return found

    def _sweep(self) -> None:
        """Remove what a fit that was stopped was about to write."""
        with files.write_errors(self.folder):
            for pattern in (f"{KEPT}*.bits", f".{NAME}.*.part", ".tmp??????"):
                for left in self.folder.glob(pattern):
                    left.unlink(missing_ok=True)

    def close(self) -> None:
        """Let others have the folder."""
        self._lock.release()

    def check_codes(self, resumed: Resumed, rows: FileRows) -> None:
        """Refuse codes that are not those of the state."""
        if rows.codes.checksum() != resumed.checksum:
            raise FileProblem(
                f"{self.folder} is damaged: its codes do not match its state. Remove it and start again."
            )

    def write(self, prepared: Prepared, state: State, walk: Walk, C: float, rows: FileRows) -> None:
        """Make this the state, durably: codes first, then the state that names them."""
        rows.codes.sync()
        assert walk.best is not None or not walk.history
        arrays = {f"state.{name}": np.asarray(value) for name, value in vars(state).items()}
        arrays |= {"scaling.mean": prepared.scaling.mean, "gram": prepared.gram}
        for name in ("held_out", "truth"):
            if (value := getattr(prepared, name)) is not None:
                arrays[name] = value
        if prepared.features is not None:
            arrays |= {f"features.{name}": value for name, value in prepared.features.tensors().items()}
        if walk.best is not None:
            arrays |= {"best.weights": walk.best.weights, "best.bias": walk.best.bias}
        header = {
            "about": self.about,
            "scaling": {name: value for name, value in vars(prepared.scaling).items() if name != "mean"},
            "history": [asdict(record) for record in walk.history],
            "walk": {name: getattr(walk, name) for name in WALKED},
            "mu": prepared.mu,
            "C": C,
            "present": rows.codes.present,
            "checksum": rows.codes.checksum(),
            "passes": rows.n_passes,
        }
        FORMAT.write(self.folder / NAME, header, arrays)

    def _read(self, resume: bool) -> Resumed | None:
        """The state of the folder, None if it has none; an error if it is of another fit."""
        if not (self.folder / NAME).exists():
            return None
        header, arrays = FORMAT.read(self.folder / NAME)
        if header["format_version"] < FORMAT.version:
            raise FileProblem(
                f"{self.folder} holds the state of a fit by auxbit {header['auxbit_version']}, which this "
                "version cannot resume. Remove it and start again."
            )
        for name, value in self.about.items():
            was = header["about"].get(name)
            if resume and was != value:
                values = "" if name == CONTENT else f", which was {was!r}, and is {value!r} now"
                raise InvalidInput(
                    f"{self.folder} holds the state of a fit with another {name}{values}. "
                    "Resume with the same, or use another folder."
                )
        scaling = Scaling(arrays["scaling.mean"], **header["scaling"])
        queries = arrays.get("held_out"), arrays.get("truth")
        features = RbfFeatures.of_tensors(arrays) if "features.centres" in arrays else None
        prepared = Prepared(scaling, arrays["gram"], *queries, header["mu"], features)
        best = None
        if "best.weights" in arrays:
            best = LinearEncoder(arrays["best.weights"], arrays["best.bias"])
        walk = Walk([Record(**record) for record in header["history"]], best, **header["walk"])
        state = State(**{
            name.removeprefix("state."): value for name, value in arrays.items() if name.startswith("state.")
        })  # fmt: skip
        return Resumed(
            prepared,
            state,
            walk,
            header["C"],
            header["present"],
            header["checksum"],
            header["passes"],
        )


# ---- What distinguishes fits: one that resumes from a checkpoint must be the one that began it

# threads and messages change nothing
FREE = frozenset({"n_jobs", "verbose", "callback"})


def identity(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters of an estimator that its result depends on, as JSON."""
    return {name: _plain(value) for name, value in sorted(parameters.items()) if name not in FREE}


def _plain(value: Any) -> Any:
    """A parameter as JSON: of arrays shape and checksum, of hashers parameters and what they have learned, of
    other objects no more than what they are.
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        if value.size <= 64:
            return value.tolist()
        return (
            f"array {value.shape} of {value.dtype}, {checksum([np.ascontiguousarray(value).tobytes()])[:16]}"
        )
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "get_params"):
        about = {"class": type(value).__name__} | identity(value.get_params(deep=False))
        if hasattr(value, "encoder_"):
            with suppress(InvalidInput):  # with an encoder of the user's it has none
                about["fitted"] = value.fingerprint()
        return about
    return value if isinstance(value, bool | int | float | str | None) else type(value).__name__
