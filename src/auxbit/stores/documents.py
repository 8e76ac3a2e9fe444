"""Codes as documents for Elasticsearch, OpenSearch and Vespa: a folder of files to send to their servers.

Elasticsearch, from 8.15   dense_vector, element_type bit         mapping.json, documents.ndjson, query.json
OpenSearch, from 2.16      knn_vector, data_type binary           the same
Vespa 8                    tensor<int8>, distance-metric hamming  NAME.sd, documents.jsonl, query.json

A folder also has exact.json, a query that reads all codes. Bytes
are those of `encode`, and queries are packed in the same way, so the order of bits changes no distance; codes
whose length is not a multiple of 8 end in zeros. The forms are those of the programs' public documentation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from auxbit.core import files
from auxbit.core.checks import Array, PathLike
from auxbit.core.maps import bytes_per_code
from auxbit.core.parallel import block_slices
from auxbit.data.records import in_utf8
from auxbit.errors import FileExists, InvalidParameter
from auxbit.stores.base import DEFAULT_NAME, PLAIN_NAME, Progress
from auxbit.stores.push import Source

PROGRAMS = ("elasticsearch", "opensearch", "vespa")
CANDIDATES = 100  # of an approximate search for ten
LONGEST = 8000  # letters that Elasticsearch searches for: longer texts are kept, but could not be indexed
ROWS = 16_384  # that are read at a time


def write_documents(
    source: Source, folder: PathLike, program: str, *, name: str = DEFAULT_NAME,
    progress: Progress | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Write the rows of a source as documents into a new folder, all or nothing; returns a summary.

    program : "elasticsearch", "opensearch" or "vespa". name : of the index, or of the schema and namespace.
    The query in query.json is the first row's code: put your own in its place.
    """
    if program not in PROGRAMS:
        raise InvalidParameter("program", program, "'elasticsearch', 'opensearch' or 'vespa'")
    if not PLAIN_NAME.fullmatch(name) or name != name.lower():
        raise InvalidParameter("name", name, "lower-case letters, digits and _, not a digit first")
    if Path(folder).exists():
        raise FileExists(f"{folder} exists. Choose the name of a new folder.")
    with files.write_errors(folder), files.new_folder(folder) as made:
        code = np.zeros(bytes_per_code(source.n_bits), dtype=np.uint8)
        if len(source):
            code = source.read(slice(0, 1))["codes"][0]
        for file, content in _about(program, name, code).items():
            text = content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
            (made / file).write_text(text, encoding="utf-8")
        file = "documents.jsonl" if program == "vespa" else "documents.ndjson"
        with (made / file).open("w", encoding="utf-8") as lines:
            for some in block_slices(len(source), ROWS):
                lines.writelines(f"{line}\n" for line in _documents(source, some, program, name))
                if progress is not None:
                    progress(some.stop - some.start)
        names = sorted(each.name for each in made.iterdir())
    return {"n_codes": len(source), "n_bits": source.n_bits, "files": names, "folder": str(Path(folder))}


def _about(program: str, name: str, code: Array) -> dict[str, Any]:
    """What says how codes are kept, and queries."""
    n_bits = 8 * len(code)
    if program == "elasticsearch":
        field = {"type": "flattened", "ignore_above": LONGEST}
        vector = {"type": "dense_vector", "element_type": "bit", "dims": n_bits, "index": True}
        source = f"({n_bits} - hamming(params.query, 'code')) / {n_bits}.0"
        knn = {"field": "code", "query_vector": _hex(code), "k": 10, "num_candidates": CANDIDATES}
        script = {"source": source, "params": {"query": _hex(code)}}
        return {
            "mapping.json": {"mappings": {"properties": {"code": vector, "metadata": field}}},
            "query.json": {"knn": knn, "_source": ["metadata"]},
            "exact.json": {"size": 10, "query": _scored(script), "_source": ["metadata"]},
        }
    if program == "opensearch":
        vector = {
            "type": "knn_vector", "dimension": n_bits, "data_type": "binary",
            "method": {"name": "hnsw", "space_type": "hamming", "engine": "faiss"},
        }  # fmt: skip
        asked = {"field": "code", "query_value": _signed(code), "space_type": "hamming"}
        script = {"source": "knn_score", "lang": "knn", "params": asked}
        knn = {"code": {"vector": _signed(code), "k": 10}}
        settings = {"index": {"knn": True}}
        return {
            "mapping.json": {
                "settings": settings,
                "mappings": {"properties": {"code": vector, "metadata": {"type": "flat_object"}}},
            },
            "query.json": {"size": 10, "query": {"knn": knn}, "_source": ["metadata"]},
            "exact.json": {"size": 10, "query": _scored(script), "_source": ["metadata"]},
        }
    return {f"{name}.sd": SCHEMA.format(name=name, width=len(code)), **_vespa_queries(name, code)}


def _scored(script: dict[str, Any]) -> dict[str, Any]:
    return {"script_score": {"query": {"match_all": {}}, "script": script}}


def _vespa_queries(name: str, code: Array) -> dict[str, Any]:
    made = {}
    for file, approximate in (("query.json", "true"), ("exact.json", "false")):
        near = f"{{targetHits: 10, approximate: {approximate}}}nearestNeighbor(code, q)"
        made[file] = {
            "yql": f"select * from {name} where {near}",
            "input.query(q)": _signed(code),
            "ranking": "hamming",
            "hits": 10,
        }
    return made


SCHEMA = """schema {name} {{
    document {name} {{
        field code type tensor<int8>(x[{width}]) {{
            indexing: summary | attribute | index
            attribute {{
                distance-metric: hamming
            }}
        }}
        field metadata type string {{
            indexing: summary
        }}
    }}
    rank-profile hamming {{
        inputs {{
            query(q) tensor<int8>(x[{width}])
        }}
        first-phase {{
            expression: closeness(field, code)
        }}
    }}
}}
"""


def _documents(source: Source, some: slice, program: str, name: str) -> Iterator[str]:
    """The lines of documents.ndjson or documents.jsonl, for some rows."""
    batch = source.read(some)
    rows = batch.get("metadata") or [None] * (some.stop - some.start)
    for number, code, row in zip(source.ids[some].tolist(), batch["codes"], rows):
        if program == "vespa":
            fields = {"code": {"values": _hex(code)}, "metadata": _json(row or {})}
            yield _json({"put": f"id:{name}:{name}::{number}", "fields": fields})
            continue
        yield _json({"index": {"_id": str(number)}})
        value = _hex(code) if program == "elasticsearch" else _signed(code)
        yield _json({"code": value} | ({"metadata": row} if row else {}))


def _json(value: Any) -> str:
    return in_utf8(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _hex(code: Array) -> str:
    return str(np.asarray(code, dtype=np.uint8).tobytes().hex())


def _signed(code: Array) -> list[int]:
    """Bytes as the numbers from -128 to 127 that they are in two's complement."""
    numbers: list[int] = np.asarray(code, dtype=np.uint8).view(np.int8).tolist()
    return numbers
