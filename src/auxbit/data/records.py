"""stub"""
from dataclasses import dataclass
from typing import Any
import json, numpy as np
from auxbit.collection.metadata import encode_rows, read_table, to_json, key_of, Row
@dataclass(frozen=True)
class Records:
    X: Any
    ids: Any
    metadata: Any
    name: str
    def __len__(self): return len(self.X)
    def __getitem__(self, r): return Records(self.X[r], None if self.ids is None else self.ids[r], None if self.metadata is None else self.metadata[r], self.name)
def read_records(source, *, vectors=None, ids=None, metadata=None): return Records(np.asarray(source), None, None, "X")
def encode_metadata(rows, n, keep_null=False):
    if isinstance(rows, dict): rows=[dict(zip(rows, v)) for v in zip(*rows.values())]
    return [json.dumps(r) if r else None for r in rows]
def field_names(rows): return list({k for r in rows if r for k in r}) if not isinstance(rows, dict) else list(rows)
def read_ids(p): return np.load(p)
