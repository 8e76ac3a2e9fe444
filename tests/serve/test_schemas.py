"""The API against its own description: whatever is sent, answers are of the kinds that it names."""

from __future__ import annotations

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import positive_data_acceptance

from helpers.serve_cases import Client, N, digits

EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "15"))
# one of two parameters, or a vector of the collection's length: no description says so
CANNOT_BE_DESCRIBED = [positive_data_acceptance]
WITHOUT_INPUT = ("GET /health", "GET /stats", "GET /model", "GET /comparison")
WITH_INPUT = (
    "GET /items",
    "GET /items/{id}",
    "GET /items/{id}/thumbnail",
    "GET /items/{id}/picture",
    "GET /items/{id}/reconstruction",
    "GET /search",
    "POST /search/vector",
    "POST /search/upload",
    "GET /uploads/{hash}/thumbnail",
    "GET /uploads/{hash}/reconstruction",
)


@pytest.fixture(scope="module")
def described():
    with Client(digits(), allowed_hosts=None) as client:
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
        case.call_and_validate(excluded_checks=CANNOT_BE_DESCRIBED)

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
        if values and isinstance(values.get("id"), int):
            values["id"] %= N
    if case.query and "id" in case.query:
        case.query.pop("upload", None)
    if isinstance(case.body, dict) and case.body.get("vector"):
        case.body["vector"] = (case.body["vector"] * 64)[:64]


@pytest.mark.parametrize("name", [each for each in WITH_INPUT if "id" in each or "search" in each])
def test_what_is_there_is_answered_as_described(described, name):
    check(described, name, schemathesis.GenerationMode.POSITIVE, at_what_is_there)
