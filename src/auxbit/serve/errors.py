"""Every error as {"error": {"code": …, "message": …}}, whatever raised it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from auxbit.errors import AuxbitError, BadPicture, CollectionError, Damaged, FileProblem, InvalidInput

logger = logging.getLogger("auxbit.serve")

CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    410: "gone",
    413: "too_large",
    415: "not_a_picture",
    422: "invalid",
}


class Problem(AuxbitError):
    """An answer other than 200: a status, a code for programs, a sentence for people."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def not_found(what: str) -> Problem:
    """The thing with that name is not there."""
    return Problem(404, "not_found", f"{what} is not there.")


def problem_of(error: Exception) -> Problem | None:
    """What to answer to an error of ours; None for one that nobody foresaw."""
    if isinstance(error, Problem):
        return error
    text = str(error)
    if isinstance(error, BadPicture):
        # a picture that is too large is one all the same
        status, code = (413, "too_many_pixels") if " pixels; at most " in text else (415, "not_a_picture")
        return Problem(status, code, f"The picture {text.rstrip('.')}.")
    if isinstance(error, InvalidInput):
        return Problem(422, "invalid", text)
    if isinstance(error, Damaged):
        return Problem(410, "damaged", text)
    if isinstance(error, CollectionError):
        return Problem(410, "collection_gone", text)
    if isinstance(error, FileProblem):
        return Problem(404, "file_gone", text)
    return None


def error_body(code: str, message: str) -> bytes:
    """The document of an error; half a surrogate pair, which UTF-8 lacks, is escaped."""
    return json.dumps({"error": {"code": code, "message": message}}).encode()


def error_response(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to a problem."""
    content = error_body(problem.code, str(problem))
    return Response(content, problem.status, dict(headers or {}), "application/json")


def install(app: FastAPI, folder: Callable[[], str]) -> None:
    """Let the app answer errors of ours, of validation and of routing in one form.

    folder : what messages must not tell: where on this machine the collection is
    """

    def ours(request: Request, error: Exception) -> Response:
        problem = problem_of(error)
        if problem is None:
            raise error
        text = str(problem).replace(folder(), "")
        return error_response(Problem(problem.status, problem.code, text))

    app.add_exception_handler(AuxbitError, ours)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(HTTPException, _of_http)


def _not_valid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found: Sequence[Any] = error.errors()
    if any(each["loc"][:1] == ("path",) for each in found):  # no id of ours looks so
        return error_response(not_found("What the address names"))
    sentences = [f"{'.'.join(map(str, each['loc'][1:])) or 'the body'}: {each['msg']}" for each in found[:5]]
    more = f"; and {len(found) - 5} more" if len(found) > 5 else ""
    text = "; ".join(sentences)
    return error_response(Problem(422, "invalid", f"{text}{more}. /api/v1/openapi.json describes it."))


def _of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = CODES.get(error.status_code, "refused")
    text = {
        404: "There is nothing at this address. /api/v1/openapi.json lists what there is.",
        405: f"{request.method} is not allowed here. /api/v1/openapi.json lists what is.",
    }.get(error.status_code, str(error.detail))
    return error_response(Problem(error.status_code, code, text), error.headers)
