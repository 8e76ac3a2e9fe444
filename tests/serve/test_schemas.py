"""The API against its own description: whatever is sent, answers are of the kinds that it names."""

from __future__ import annotations

import json
import os

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import negative_data_rejection, positive_data_acceptance

from auxbit import ITQ, Collection
from auxbit.data.vectors import embedded_digits
from helpers.serve_cases import Client, N, digits

EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "15"))
# one of two parameters, or a vector of the collection's length: no description says so
CANNOT_BE_DESCRIBED = [positive_data_acceptance]
OF_STREAMS = [negative_data_rejection]  # their lines are judged one by one
WITHOUT_INPUT = ("GET /health", "GET /stats", "GET /model", "GET /comparison")
WITH_INPUT = (
    "GET /duplicates",
    "GET /duplicates/spare",
    "GET /items",
    "POST /items",
    "POST /items/get",
    "POST /items/delete",
    "POST /items/stream",
    "GET /items/{id}",
    "DELETE /items/{id}",
    "GET /items/{id}/thumbnail",
    "GET /items/{id}/picture",
    "GET /items/{id}/reconstruction",
    "GET /search",
    "POST /search/vector",
    "POST /search/stream",
    "POST /search/upload",
    "GET /uploads/{hash}/thumbnail",
    "GET /uploads/{hash}/reconstruction",
)


@schemathesis.serializer("application/x-ndjson")
def as_lines(context, value):
    """What is no text becomes a line of JSON."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode(errors="replace")


OF_VECTORS = [name for name in WITH_INPUT if "upload" not in name and name.count("/") < 3]


@pytest.fixture(scope="module")
def described():
    with Client(digits(), allowed_hosts=None) as client:
        yield schemathesis.openapi.from_asgi("/api/v1/openapi.json", client.app)


@pytest.fixture(scope="module")
def of_vectors(tmp_path_factory):
    """The description of a collection without pictures, which may be changed."""
    path, X = tmp_path_factory.mktemp("vectors") / "c", embedded_digits()[0][:N]
    with Collection.create(path, ITQ(n_bits=12, random_state=0).fit(X), vectors="float32") as collection:
        collection.add(X, metadata=[{"row": row, "text": str(row)} for row in range(N)])
    how = {"allowed_hosts": None, "writable": True, "embed": lambda texts: X[: len(texts)]}
    with Client(path, **how) as client:
        yield schemathesis.openapi.from_asgi("/api/v1/openapi.json", client.app)


def test_the_description_has_these_operations_and_no_others(described):
    found = [result.ok() for result in described.get_all_operations()]
    assert {f"{each.method.upper()} {each.path.removeprefix('/api/v1')}" for each in found} == {
        *WITHOUT_INPUT,
        *WITH_INPUT,
    }


def check(described, name, mode, aim=lambda case: None):
    method, path = name.split()
    operation = described[f"/api/v1{path}"][method]

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case):
        aim(case)
        case.call_and_validate(excluded_checks=CANNOT_BE_DESCRIBED + OF_STREAMS * ("stream" in name))

    send()


@pytest.mark.parametrize("name", [*WITHOUT_INPUT, *WITH_INPUT])
def test_what_is_allowed_is_answered_as_described(described, name):
    check(described, name, schemathesis.GenerationMode.POSITIVE)


@pytest.mark.parametrize("name", WITH_INPUT)
def test_what_is_not_allowed_is_refused_as_described(described, name):
    check(described, name, schemathesis.GenerationMode.NEGATIVE)


def at_what_is_there(case):
    """Let the case ask for an item, or for a vector of the right length, that the collection has."""
    for values in (case.path_parameters, case.query):
        if values and isinstance(values.get("id"), str):
            values["id"] = str(len(values["id"]) % N)
    if case.query and "id" in case.query:
        case.query.pop("upload", None)
        case.query.pop("text", None)
    if case.query:
        case.query.pop("where", None)
    if isinstance(case.body, dict):
        case.body.pop("where", None)
        for each in (case.body, *(case.body.get("items") or ())):
            if each.get("vector"):
                each["vector"] = (each["vector"] * 64)[:64]
                each.pop("code", None)
    if isinstance(case.body, str):
        case.body = '{"id": 3}\n' + case.body


@pytest.mark.parametrize("name", OF_VECTORS)
def test_vectors_are_read_added_and_deleted_as_described(of_vectors, name):
    check(of_vectors, name, schemathesis.GenerationMode.POSITIVE)
    check(of_vectors, name, schemathesis.GenerationMode.POSITIVE, at_what_is_there)
    check(of_vectors, name, schemathesis.GenerationMode.NEGATIVE)


@pytest.mark.parametrize("name", [each for each in WITH_INPUT if "{id}" in each or "search" in each])
def test_what_is_there_is_answered_as_described(described, name):
    check(described, name, schemathesis.GenerationMode.POSITIVE, at_what_is_there)
