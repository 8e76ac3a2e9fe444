"""What is PostgreSQL's own: names, rights, other people's tables, bits as SQL sees them, bad connections."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from auxbit import BinaryAutoencoder
from auxbit.core.maps import unpack
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.stores import StoreError, StoreExists, StoreUnreachable, connect
from auxbit.stores import pgvector as statements
from auxbit.stores.base import read_mark
from helpers.index_truth import random_codes
from helpers.store_servers import PASSWORD, free_port

pytest_plugins = ["helpers.store_fixtures"]


@pytest.fixture
def sql(postgres):
    """Run statements as the owner of everything."""
    import psycopg

    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        yield connection.execute


@pytest.fixture
def database(sql, postgres):
    """The URL of a new database, without pgvector."""
    sql("DROP DATABASE IF EXISTS fresh")
    sql("CREATE DATABASE fresh")
    yield postgres.url("fresh")
    sql("DROP DATABASE fresh WITH (FORCE)")


@pytest.mark.parametrize("n_bits", [5, 8, 64, 77])
def test_character_j_of_the_bit_string_is_bit_j_of_the_code(postgres, sql, n_bits):
    codes = random_codes(20, n_bits)
    with connect(postgres.url(), "bits") as store:
        store.create(n_bits, overwrite=True)
        store.add(codes, np.arange(20))
    found = sql("SELECT code::text, octet_length(code) FROM bits ORDER BY id").fetchall()
    bits = unpack(codes, n_bits)
    assert [text for text, _ in found] == ["".join(map(str, row)) for row in bits.tolist()]
    assert {size for _, size in found} == {-(-n_bits // 8)}


def test_the_statements_of_the_documentation_give_the_same_answers(postgres, sql):
    page = (Path(__file__).parents[2] / "docs" / "stores.md").read_text()
    blocks = re.findall(r"^```sql\n(.*?)^```", page, re.M | re.S)
    assert len(blocks) >= 4
    codes = random_codes(200, 64)
    X = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    sql("DROP TABLE IF EXISTS photos CASCADE")
    sql(blocks[0])  # makes the table `photos`, as the store would
    comment = sql("SELECT obj_description('photos'::regclass)").fetchone()[0]
    assert read_mark(comment)["n_bits"] == 64
    rows = [{"label": "cat" if row % 2 else "dog", "year": 2000 + row % 30} for row in range(200)]
    with connect(postgres.url(), "photos") as store:
        store.add(codes, np.arange(200), metadata=rows, vectors=X)
        query = "".join(map(str, unpack(codes[[7]], 64)[0]))
        answers = {
            "ORDER BY distance, id LIMIT 10": store.search(codes[[7]], 10),
            "WHERE metadata": store.search(codes[[7]], 10, where={"label": "cat", "year": {">=": 2010}}),
        }
        for sign, (distances, ids) in answers.items():
            others = ("vector <->", "auxbit_decoder_sum")
            (block,) = [each for each in blocks if sign in each and not any(map(each.count, others))]
            found = sql(block, {"query": query}).fetchall()
            assert [tuple(map(int, row)) for row in found] == list(
                zip(ids[0].tolist(), distances[0].tolist())
            )
        (block,) = [each for each in blocks if "vector <->" in each]
        found = sql(block, {"query": query, "vector": str(X[7].tolist())}).fetchall()
        _, ids = store.search(codes[[7]], 10, rerank=X[[7]], candidates=100)
        assert [row[0] for row in found] == ids[0].tolist()
        for block in [each for each in blocks if "CREATE INDEX" in each]:
            sql(block)
        assert not store.exact


def test_the_statement_of_the_documentation_ranks_by_the_decoder_in_the_server(postgres, sql, digits):
    page = (Path(__file__).parents[2] / "docs" / "stores.md").read_text()
    (block,) = [
        each for each in re.findall(r"^```sql\n(.*?)^```", page, re.M | re.S) if "decoder_sum" in each
    ]
    model = BinaryAutoencoder(64, random_state=0, max_iter=1, init="lsh").fit(digits[:300])
    codes, query = model.encode(digits[:300]), digits[[300]]
    with connect(postgres.url(), "ranked") as store:
        store.create(64, model=model, overwrite=True)
        store.add(codes, np.arange(300), model=model)
        with pytest.raises(InvalidInput, match=r"ranks by the decoder of the model .*: give model, too"):
            store.add(codes, np.arange(300))
        wanted, ids = store.search(query, 10, model=model, candidates=500)
    tables, offsets = statements.decoder_tables(model.decoder_, query)
    bits = "".join(map(str, unpack(model.encode(query), 64)[0]))
    found = sql(block, {"tables": tables[0], "query": bits}).fetchall()
    assert [row[0] for row in found] == ids[0].tolist()
    np.testing.assert_allclose([row[1] + offsets[0] for row in found], wanted[0], rtol=1e-3)


def test_a_function_of_that_name_that_auxbit_has_not_made_is_left_alone(database):
    import psycopg

    with psycopg.connect(database, autocommit=True) as theirs, connect(database) as store:
        theirs.execute(
            "CREATE FUNCTION auxbit_decoder_sum(bit, real[]) RETURNS int LANGUAGE sql AS 'SELECT 1'"
        )
        with pytest.raises(StoreExists, match="the function 'auxbit_decoder_sum' was not made by auxbit"):
            store.create(8)
        assert not store.exists


@pytest.mark.parametrize(
    "name", ['we"ird', "Upper Case", "drop table x; --", "a.b", "%s", "{x}", "é😀", "select"]
)
def test_names_are_quoted(postgres, sql, name):
    codes = random_codes(3, 8)
    with connect(postgres.url(), name) as store:
        store.create(8, overwrite=True)
        store.add(codes, [1, 2, 3])
        store.add(codes, [1, 2, 3])
        store.create_index()
        assert store.search(codes, 1)[0].tolist() == [[0]] * 3
        assert store.count({"a": {"!=": 1}}) == 3
        assert store.delete([1]) == 1
        store.remember_push("source", 2)
        assert store.pushed("source") == 2
    assert sql("SELECT count(*) FROM pg_tables WHERE tablename = %s", [name]).fetchone() == (1,)


@pytest.mark.parametrize("name", ["", "x" * 64, "é" * 32, "a\0b", 7])
def test_names_that_postgres_would_change_are_refused(postgres, name):
    with pytest.raises(InvalidParameter, match="name="):
        connect(postgres.url(), name)


@pytest.mark.parametrize(
    "making",
    [
        "CREATE TABLE theirs (id int)",
        "CREATE VIEW theirs AS SELECT 1 AS id",
        "CREATE TABLE theirs (id int); COMMENT ON TABLE theirs IS 'auxbit store: not json'",
        "CREATE VIEW theirs AS SELECT 1 AS id; COMMENT ON VIEW theirs IS 'auxbit store: {\"n_bits\": 8}'",
    ],
)
def test_what_auxbit_has_not_made_is_left_alone(postgres, sql, making):
    sql(making)
    try:
        with connect(postgres.url(), "theirs") as store:
            for attempt in (lambda: store.create(8), lambda: store.create(8, overwrite=True), store.count):
                with pytest.raises(
                    StoreExists, match="'theirs' was not made by auxbit, so it is not changed"
                ):
                    attempt()
        assert sql("SELECT count(*) FROM pg_class WHERE relname = 'theirs'").fetchone() == (1,)
    finally:
        sql("DROP VIEW theirs" if "VIEW" in making else "DROP TABLE theirs")


def test_a_table_that_others_depend_on_is_not_replaced(postgres, sql):
    with connect(postgres.url(), "base_table") as store:
        store.create(8, overwrite=True)
        sql("CREATE VIEW on_it AS SELECT id FROM base_table")
        with pytest.raises(StoreError, match=r"'base_table' is not replaced, others depend on it: .*on_it"):
            store.create(16, overwrite=True)
        assert store.n_bits == 8
        sql("DROP VIEW on_it")


def test_a_table_of_that_name_for_pushes_is_left_alone(database):
    import psycopg

    with psycopg.connect(database, autocommit=True) as theirs, connect(database) as store:
        theirs.execute("CREATE TABLE auxbit_pushes (x int)")
        store.create(8)
        with pytest.raises(StoreExists, match="the table 'auxbit_pushes', in which pushes are noted"):
            store.remember_push("source", 1)


def test_pgvector_is_enabled_where_it_is_not_and_found_in_any_schema(database):
    import psycopg

    with psycopg.connect(database, autocommit=True) as theirs:
        theirs.execute("CREATE SCHEMA apart")
        theirs.execute("CREATE EXTENSION vector SCHEMA apart")
    codes = random_codes(50, 16)
    with connect(database) as store:
        store.create(16, n_features=2)
        store.add(codes, np.arange(50), vectors=np.zeros((50, 2)))
        store.create_index()
        assert store.search(codes, 1)[0].tolist() == [[0]] * 50
        assert store.search_radius(codes, 0)[0][-1] >= 50
        assert store.search(codes[:1], 1, rerank=np.zeros((1, 2)))[0].tolist() == [[0]]


def test_a_server_without_pgvector_says_what_to_install(database, monkeypatch):
    monkeypatch.setattr(statements, "AVAILABLE", "SELECT 0")  # what a server says that has not got it
    with (
        connect(database) as store,
        pytest.raises(StoreError, match=r"the server has no pgvector\. Install it"),
    ):
        store.create(8)


def test_an_old_pgvector_says_how_to_update_it(database, monkeypatch):
    monkeypatch.setattr(statements, "EXTENSION", "SELECT '0.5.1', 'public'")
    with (
        connect(database) as store,
        pytest.raises(StoreError, match=r"pgvector 0\.5\.1 has no bit strings: 0\.7"),
    ):
        store.create(8)


def test_a_user_without_rights_is_told_who_can_help(database, sql, postgres):
    sql("DROP ROLE IF EXISTS guest")
    sql("CREATE ROLE guest LOGIN")
    guest = postgres.url("fresh", "guest")
    with connect(guest) as store, pytest.raises(StoreError, match="owner run: CREATE EXTENSION vector;"):
        store.create(8)
    with connect(database) as owner:
        owner.create(8)
        owner.add(random_codes(1, 8), [1])
    with connect(guest) as store:
        for attempt in (store.count, lambda: store.add(random_codes(1, 8), [2])):
            with pytest.raises(StoreError, match=r"permission denied for table auxbit_codes.*grant it"):
                attempt()
    with connect(guest, "other") as store, pytest.raises(StoreError, match="denied for schema public"):
        store.create(8)


def test_a_full_server_is_not_taken_for_one_that_is_gone(postgres, sql):
    with connect(postgres.url(), "filled") as store:
        store.create(8, overwrite=True)
        sql(
            "CREATE OR REPLACE FUNCTION disk_is_full() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN RAISE disk_full USING MESSAGE = 'No space left on device'; END$$"
        )
        sql("CREATE TRIGGER refuse BEFORE INSERT ON filled EXECUTE FUNCTION disk_is_full()")
        with pytest.raises(StoreError, match=r"/postgres: No space left on device\.$") as found:
            store.add(random_codes(1, 8), [1])
        assert not isinstance(found.value, StoreUnreachable)
        assert store.count() == 0


# ---- connections that fail


def test_a_refused_connection_is_told():
    with pytest.raises(
        StoreUnreachable, match=r"postgresql://u@127.0.0.1:\d+/db cannot be reached: .*Connection refused"
    ) as found:
        connect(f"postgresql://u:{PASSWORD}@127.0.0.1:{free_port()}/db")
    assert str(found.value).count("Is the server running") == 1


def test_a_database_that_is_not_there_is_told(postgres):
    with pytest.raises(
        StoreUnreachable, match=r'database "nowhere" does not exist.*Create the database first'
    ):
        connect(postgres.url("nowhere"))


@pytest.mark.parametrize("password", ["wrong-word", ""])
def test_a_wrong_password_is_told_and_never_shown(postgres, sql, password):
    sql("DROP ROLE IF EXISTS needs_password")
    sql(f"CREATE ROLE needs_password LOGIN PASSWORD '{PASSWORD}'")
    with pytest.raises(StoreUnreachable, match="Check the password in the URL, in PGPASSWORD") as found:
        connect(postgres.url(user="needs_password", password=password))
    assert "wrong-word" not in str(found.value)
    with connect(postgres.url(user="needs_password", password=PASSWORD), "never_made") as store:
        assert PASSWORD not in repr(store)
        assert not store.exists


@pytest.mark.parametrize("tail", ["?nonsense=1", "?sslmode=maybe", "?connect_timeout=soon"])
def test_a_url_that_the_driver_cannot_read_is_refused_without_its_password(postgres, tail):
    with pytest.raises((InvalidParameter, StoreUnreachable)) as found:
        connect(postgres.url(password=PASSWORD) + tail)
    assert PASSWORD not in str(found.value)
    assert found.value.__cause__ is None


def test_ef_search_is_checked(postgres):
    with pytest.raises(InvalidParameter, match="ef_search=5000"):
        connect(postgres.url(), ef_search=5000)
