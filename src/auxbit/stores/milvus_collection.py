"""One collection of ours in Milvus: finding it, making it, counting and reading its rows."""

from __future__ import annotations

import json
import re
import secrets
from typing import Any

import numpy as np

from auxbit.codes import bytes_per_code
from auxbit.errors import InvalidInput, InvalidParameter, StoreError, StoreExists
from auxbit.extras import require
from auxbit.stores.milvus_client import PURPOSE, Client
from auxbit.stores.milvus_where import expression
from auxbit.stores.protocol import Ids, Rows

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
MARK = "auxbit store: "  # in front of what a collection's description says about it
MANY_IDS = 8192  # in one expression
SLOW = 600.0  # seconds, for what may have to build an index
STRONG = {"consistency_level": "Strong"}  # what was added is found
SEVERAL_VECTORS = PARTS_OF_TEXT = (2, 4)  # versions from which Milvus has them


class MilvusCollection:
    """The collection `name`; its description says that it is ours, and what it holds."""

    def __init__(self, client: Client, name: str) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InvalidParameter("name", name, "letters, digits and _, not a digit first, for Milvus")
        self.client, self.name = client, name
        self._about: dict[str, Any] | None = None
        self._n_lists: int | None = None

    def find(self) -> dict[str, Any] | None:
        """What its description says about it, None where there is none; an error if it is not ours."""
        if not self.client.call("has_collection", self.name):
            return None
        text = str(self.client.call("describe_collection", self.name).get("description", ""))
        about: Any = None
        if text.startswith(MARK):
            about = json.loads(text[len(MARK) :])
        if not isinstance(about, dict) or "n_bits" not in about:
            raise StoreExists(
                f"there is a collection {self.name!r} that auxbit has not made, and it is left alone. "
                "Choose another name."
            )
        return about

    def known(self) -> dict[str, Any]:
        """What the collection is; read once, when it is also loaded for searches."""
        if self._about is None:
            found = self.find()
            if found is None:
                place = self.client.address.shown
                raise StoreError(f"there is no collection {self.name!r} in {place}: create it first.")
            self.client.call("load_collection", self.name, timeout=SLOW)
            self._about = found
        return self._about

    def create(self, n_bits: int, n_features: int | None, *, overwrite: bool) -> None:
        """Make it, with an exact index."""
        if n_features is not None and self.client.version() < SEVERAL_VECTORS:
            raise StoreError("this Milvus keeps one vector a row, the code: 2.4 and later keep others, too.")
        present = self.find()
        if present is not None and not overwrite:
            raise StoreExists(
                f"the collection {self.name!r} exists, with codes of {present['n_bits']} bits. Choose "
                "another name, or replace it with --force (overwrite=True)."
            )
        if present is not None:
            self.client.call("drop_collection", self.name)
        about = {"n_bits": n_bits, "n_features": n_features, "key": secrets.token_hex(16), "version": 1}
        kinds = require("pymilvus", extra="milvus", purpose=PURPOSE).DataType
        schema = self.client.schema(description=MARK + json.dumps(about, sort_keys=True))
        schema.add_field("id", kinds.INT64, is_primary=True)
        schema.add_field("code", kinds.BINARY_VECTOR, dim=8 * bytes_per_code(n_bits))
        schema.add_field("metadata", kinds.JSON)
        indexes = self.client.index_parameters()
        indexes.add_index("code", index_type="BIN_FLAT", metric_type="HAMMING")
        if n_features is not None:
            schema.add_field("vector", kinds.FLOAT_VECTOR, dim=n_features)
            indexes.add_index("vector", index_type="FLAT", metric_type="L2")
        self.client.call("create_collection", self.name, schema=schema, index_params=indexes, **STRONG)
        self._about, self._n_lists = about, 0

    def n_lists(self) -> int:
        """How many lists the codes are sorted into, 0 where searches look at all of them."""
        if self._n_lists is None:
            _ = self.known()
            about = self.client.call("describe_index", self.name, "code") or {}
            self._n_lists = int(about.get("nlist", 0)) if about.get("index_type") == "BIN_IVF_FLAT" else 0
        return self._n_lists

    def sort_into_lists(self, n_lists: int) -> None:
        """Replace the index by an approximate one over what is there."""
        indexes = self.client.index_parameters()
        settings = {"metric_type": "HAMMING", "params": {"nlist": n_lists}}
        indexes.add_index("code", index_type="BIN_IVF_FLAT", **settings)
        for step in ("flush", "release_collection"):  # only what is flushed is indexed
            self.client.call(step, self.name, timeout=SLOW)
        self.client.call("drop_index", self.name, "code", timeout=SLOW)
        self.client.call("create_index", self.name, indexes, timeout=SLOW)
        self.client.call("load_collection", self.name, timeout=SLOW)
        self._n_lists = n_lists

    def condition(self, where: Any) -> str:
        """The expression for these conditions, empty for none."""
        if where is None:
            return ""
        return expression(where, parts_of_text=self.client.version() >= PARTS_OF_TEXT)

    def count(self, condition: str) -> int:
        """How many rows fulfil it."""
        _ = self.known()
        found = self.client.call("query", self.name, filter=condition, output_fields=["count(*)"], **STRONG)
        return int(found[0]["count(*)"])

    def read(self, ids: Ids, *fields: str) -> list[dict[str, Any]]:
        """The rows with these ids, of which some may be missing, in any order."""
        _ = self.known()
        found: list[dict[str, Any]] = []
        unique = np.unique(ids[ids >= 0])
        for first in range(0, len(unique), MANY_IDS):
            condition = f"id in {unique[first : first + MANY_IDS].tolist()}"
            names = ["id", *fields]
            found += self.client.call("query", self.name, filter=condition, output_fields=names, **STRONG)
        return found

    def put(self, rows: Rows) -> None:
        """Add rows, in the place of those with the same ids."""
        span = f"id >= {rows.ids.min()} and id <= {rows.ids.max()}"
        # upsert deletes first, which takes longer; insert would keep two rows of one id
        method = "upsert" if self.count(span) else "insert"
        self.client.call(method, self.name, _as_dicts(rows))


def _as_dicts(rows: Rows) -> list[dict[str, Any]]:
    """Rows as pymilvus takes them."""
    texts = rows.texts() if rows.has_metadata else [b"{}"] * len(rows)
    made: list[dict[str, Any]] = []
    for row, (number, text) in enumerate(zip(rows.ids.tolist(), texts)):
        fields = json.loads(text)
        dotted = next((name for name in fields if "." in name), None)
        if dotted is not None:
            raise InvalidInput(
                f"metadata field {dotted!r} has a dot, which conditions on Milvus take for a step into an "
                "object. Rename it."
            )
        made.append({"id": number, "code": rows.codes[row].tobytes(), "metadata": fields})
        if rows.vectors is not None:
            made[-1]["vector"] = rows.vectors[row]
    return made
