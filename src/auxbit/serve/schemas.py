"""The documents of the API, as the OpenAPI description has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from auxbit.index.codes import MAX_ID
from auxbit.serve.security import MAX_K

Mode = Literal["hamming", "asymmetric", "reranked"]
Order = Literal["added", "name", "random"]
Id = Annotated[int, Field(ge=0, le=MAX_ID)]
Count = Annotated[int, Field(ge=0)]
Code = Annotated[str, Field(pattern="^[01]*$", description="one character per bit")]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of an uploaded file")]


class Document(BaseModel):
    """Nothing but what is declared."""

    model_config = ConfigDict(extra="forbid")


class ErrorDetail(Document):
    """code : for programs; message : for people, with the remedy."""

    code: str
    message: str


class Error(Document):
    """What every status of 400 and above comes with."""

    error: ErrorDetail


class Health(Document):
    """The server is up, and can read the collection."""

    status: Literal["ok"]
    version: str
    items: Count


class Features(Document):
    """How pictures become vectors."""

    kind: str
    side: int
    colour: float
    grey: bool


class Stats(Document):
    """The collection, and what the server allows."""

    name: str
    items: Count
    bits: int
    method: str
    coding: str
    mu: float
    dimension: int
    features: Features
    modes: list[Mode]
    default_mode: Mode
    reconstructs: bool
    has_comparison: bool
    max_k: int
    max_upload_bytes: int
    max_upload_pixels: int
    bytes: dict[str, int]
    added_since_training: Count
    retrain: bool
    reasons: list[str]


class Item(Document):
    """A picture; thumbnail : an address."""

    id: Id
    file: str
    width: Count
    height: Count
    thumbnail: str


class ItemDetail(Item):
    """All about a picture."""

    bytes: Count
    format: str
    taken: str | None
    code: Code
    reconstruction: str | None
    picture: str


class Items(Document):
    """A part of a listing, from `offset` on; total : how many there are in all."""

    total: Count
    offset: Count
    items: list[Item]


class Query(Document):
    """What was searched for: an item, an upload, or, with neither, a vector."""

    id: Id | None
    upload: Hash | None
    file: str | None
    thumbnail: str | None
    reconstruction: str | None
    code: Code
    width: Count | None
    height: Count | None


class Result(Item):
    """distance : by the mode, in bits or Euclidean; hamming : between the codes."""

    reconstruction: str | None
    distance: float
    hamming: Count
    code: Code


class Answer(Document):
    """The nearest first; items : how many were searched."""

    query: Query
    mode: Mode
    k: int
    radius: int | None
    items: Count
    milliseconds: float
    results: list[Result]


class VectorQuery(Document):
    """A search by a vector, as the describer of the collection makes them."""

    vector: Annotated[list[FiniteFloat], Field(min_length=1)]
    k: Annotated[int, Field(ge=1, le=MAX_K)] = 20
    mode: Mode | None = None
    radius: Annotated[int | None, Field(ge=0)] = None


class Iteration(Document):
    """One iteration of the training; E_Q : the error with the penalty, E_BA : that of f(h(x))."""

    iteration: int
    mu: float
    E_Q: float
    E_BA: float
    changed: int
    mismatched: int
    precision: float | None


class EffectiveBits(Document):
    """effective : entropy of the codes in bits; bound : min(bits, log2 items)."""

    bits: int
    effective: float
    bound: float


class BucketSize(Document):
    """How many buckets have that many items."""

    items: Count
    buckets: Count


class Buckets(Document):
    """Items by code."""

    distinct: Count
    largest: Count
    sizes: list[BucketSize]


class Training(Document):
    """What the model was trained on; error : mean ‖x − f(z)‖² of a sample."""

    rows: Count
    error: float
    coding: str
    mu: float


class ModelReport(Document):
    """The model, and how its codes use their bits."""

    method: str
    bits: int
    items: Count
    dimension: int
    parameters: dict[str, Any]
    history: list[Iteration]
    effective_bits: EffectiveBits
    balance: list[float]
    correlation: list[list[float]]
    buckets: Buckets
    training: Training | None


class Comparison(BaseModel):
    """Methods side by side; a row has at least a method and its bits."""

    model_config = ConfigDict(extra="allow")

    rows: list[dict[str, Any]]
