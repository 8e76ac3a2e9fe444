"""The documents of the API, as the OpenAPI description has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, StrictInt, StrictStr

from auxbit.index.codes import MAX_ID
from auxbit.serve.security import MAX_ADDED, MAX_ITEMS, MAX_K, MAX_TEXT

Mode = Literal["hamming", "asymmetric", "reranked"]
Id = Annotated[StrictInt, Field(ge=0, le=MAX_ID)] | Annotated[StrictStr, Field(min_length=1, max_length=1000)]
Where = Annotated[
    Annotated[str, Field(max_length=MAX_TEXT)] | dict[str, Any] | None,
    Field(description='Conditions on metadata: "year >= 2020 and lang = en", or {"year": {">=": 2020}}'),
]
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
    """The body of every response with status 400 and above."""

    error: ErrorDetail


class Health(Document):
    """The server is up, and can read the collection."""

    status: Literal["ok"]
    version: str
    items: Count


class Features(Document):
    """How pictures become vectors."""

    kind: str = Field(description="gist, pixels or onnx")
    side: int = Field(description="side of the square of a picture that is used, in pixels")
    colour: float = Field(description="weight of a colour histogram beside GIST")
    grey: bool = Field(description="for pixels: whether colours are averaged")


class Stats(Document):
    """The collection, and what the server allows."""

    name: str
    items: Count
    bits: int = Field(description="bits per code")
    method: str | None = Field(description="null if codes are made elsewhere")
    metric: str
    coding: str = Field(description="hash, or optimal: chosen for the decoder")
    mu: float = Field(description="cost of each bit that differs from the hash function")
    dimension: int = Field(description="numbers per vector")
    vectors: str | None = Field(description="type of the stored vectors; null if none are stored")
    ids: str | None = Field(description="integers, text or uuid")
    fields: list[str] = Field(description="names of the fields of metadata")
    features: Features | None
    modes: list[Mode] = Field(description="ways to search")
    default_mode: Mode
    has_radius: bool = Field(description="whether a search may have a radius")
    has_pictures: bool
    has_text_search: bool = Field(description="whether pictures can be searched by words")
    writable: bool = Field(description="whether items can be added and deleted")
    reconstructs: bool = Field(description="whether pictures can be drawn from their codes")
    has_comparison: bool = Field(description="whether methods were compared")
    max_k: int = Field(description="largest number of results")
    max_upload_bytes: int
    max_upload_pixels: int
    bytes: dict[str, int] = Field(description="bytes on disk, by what they hold")
    added_since_training: Count = Field(description="items that the model was not trained on")
    retrain: bool = Field(description="whether these differ so much that training again is advised")
    reasons: list[str] = Field(description="why it is advised")


class Item(Document):
    """An item of the collection."""

    id: Id
    metadata: dict[str, Any]


class Picture(Item):
    """A picture; thumbnail : an address."""

    file: str
    width: Count
    height: Count
    thumbnail: str


class ItemDetail(Item):
    """All about an item; vector : null if it is not kept, or was not requested."""

    code: Code
    vector: list[float] | None


class PictureDetail(Picture, ItemDetail):
    """All about a picture."""

    bytes: Count
    format: str
    taken: str | None
    reconstruction: str | None
    picture: str


class Items(Document):
    """A part of a listing, from `offset` on; total : how many there are in all."""

    total: Count
    offset: Count
    items: list[Picture | Item]


class ItemIds(Document):
    """Which items to get."""

    ids: Annotated[list[Id], Field(min_length=1, max_length=MAX_ITEMS)]
    vectors: bool = False


class Got(Document):
    """Items in the order of the ids."""

    items: list[PictureDetail | ItemDetail]


class NewItem(Document):
    """An item to add: a vector, a code, or both; the default id is the next integer."""

    id: Id | None = None
    vector: Annotated[list[FiniteFloat], Field(min_length=1)] | None = None
    code: Code | None = None
    metadata: dict[str, Any] | None = None


class NewItems(Document):
    """Items to add, all or none; with `upsert` items with existing ids are replaced."""

    items: Annotated[list[NewItem], Field(min_length=1, max_length=MAX_ADDED)]
    upsert: bool = False


class Added(Document):
    """The items are added and on disk; items : how many there are now."""

    ids: list[Id]
    items: Count


class Unwanted(Document):
    """What to delete: items by their ids, all or none, or those that match conditions."""

    ids: Annotated[list[Id], Field(min_length=1, max_length=MAX_ADDED)] | None = None
    where: Where = None


class Deleted(Document):
    """How many items were deleted, and how many are left."""

    deleted: Count
    items: Count


class Query(Document):
    """What was searched for: an item, with its metadata, a text or, with neither, a vector or a code."""

    id: Id | None
    metadata: dict[str, Any] | None
    text: str | None
    code: Code | None


class PictureQuery(Query):
    """What was searched for among pictures: an item, an upload, or something else."""

    upload: Hash | None
    file: str | None
    thumbnail: str | None
    reconstruction: str | None
    width: Count | None
    height: Count | None


class Result(Item):
    """distance : by the mode, in bits or Euclidean; hamming : between the codes, null if not requested."""

    distance: float
    hamming: Count | None
    code: Code | None


class PictureResult(Picture, Result):
    """A picture that was found. view : which of its views was the nearest, null for the picture itself."""

    reconstruction: str | None
    view: str | None


class Answer(Document):
    """The nearest first; items : how many were searched."""

    query: PictureQuery | Query
    mode: Mode
    k: int
    radius: int | None
    where: str | None
    items: Count
    milliseconds: float
    results: list[PictureResult | Result]


class Sought(Document):
    """One line of a stream of searches: a vector, the id of an item, a text or a code."""

    vector: Annotated[list[FiniteFloat], Field(min_length=1)] | None = None
    id: Id | None = None
    text: Annotated[str, Field(pattern=r"\S", max_length=MAX_TEXT)] | None = None
    code: Code | None = None


class VectorQuery(Document):
    """A search by a vector of the collection's dimension, or by a code."""

    vector: Annotated[list[FiniteFloat], Field(min_length=1)] | None = None
    code: Code | None = None
    k: Annotated[int, Field(ge=1, le=MAX_K)] = 20
    mode: Mode | None = None
    radius: Annotated[int | None, Field(ge=0)] = None
    where: Where = None
    codes: Annotated[bool | None, Field(description="Return codes; by default only for pictures")] = None


class DuplicateGroup(Document):
    """Items that are the same, or nearly the same; the first is the one to keep."""

    items: list[Picture | Item]


class Duplicates(Document):
    """Some groups of duplicates; total : of all groups; spare : items beyond one of each group."""

    radius: int | None
    total: Count
    spare: Count
    offset: Count
    groups: list[DuplicateGroup]


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
    parameters: dict[str, Any] = Field(description="parameters of the estimator")
    history: list[Iteration] = Field(description="iterations of the training; empty for methods without any")
    effective_bits: EffectiveBits
    balance: list[float] = Field(description="for each bit the share of ones")
    correlation: list[list[float]] = Field(description="correlation of each pair of bits")
    buckets: Buckets
    training: Training | None


class Comparison(BaseModel):
    """Methods side by side; a row has at least a method and its bits."""

    model_config = ConfigDict(extra="allow")

    rows: list[dict[str, Any]]
