"""The endpoints about the whole: health, statistics, model, comparison."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from auxbit import __version__
from auxbit.errors import Damaged
from auxbit.images.writing import COMPARISON
from auxbit.serve import schemas
from auxbit.serve.answering import errors, json_answer, json_bytes
from auxbit.serve.errors import Problem
from auxbit.serve.limits import MAX_K
from auxbit.serve.site import Site


def info_routes(site: Site) -> APIRouter:
    """The endpoints about the whole."""
    router = APIRouter(tags=["about"])
    collection = site.collection

    @router.get("/health", response_model=schemas.Health, responses=errors())
    def health() -> Response:
        """Whether the server is up and can read the collection."""
        return json_answer({"status": "ok", "version": __version__, "items": len(collection)})

    @router.get("/stats", response_model=schemas.Stats, responses=errors())
    def stats() -> Response:
        """The collection in figures, and what this server allows."""
        return json_answer(
            site.stats()
            | {
                "has_comparison": (collection.path / COMPARISON).is_file(),
                "max_k": MAX_K,
                "max_upload_bytes": site.limits.upload_bytes,
                "max_upload_pixels": site.limits.upload_pixels,
            }
        )

    @router.get("/model", response_model=schemas.ModelReport, responses=errors())
    def model() -> Response:
        """How the model was trained, and how its codes use their bits."""
        return json_bytes(site.report())

    @router.get("/comparison", response_model=schemas.Comparison, responses=errors(404))
    def comparison() -> Response:
        """Methods side by side, where a comparison was run."""
        return json_answer(_comparison(site))

    return router


def _comparison(site: Site) -> Any:
    path = site.collection.path / COMPARISON
    try:
        document = json.loads(path.read_bytes(), parse_constant=lambda name: None)
    except FileNotFoundError:
        command = f"auxbit images compare {site.collection.path.name}"
        raise Problem(404, "no_comparison", f"No comparison was run here yet: {command}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"{path} cannot be read: {error}.") from error
    if not isinstance(document, dict) or not isinstance(document.get("rows"), list):
        raise Damaged(f"{path} is not a comparison.")
    return document
