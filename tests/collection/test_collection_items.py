"""Items of a collection: ids of any kind, rows from files and frames, metadata that changes, one query."""

from __future__ import annotations

import json
import sqlite3
import uuid
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auxbit import ITQ, LSH, Collection
from auxbit.collection import snapshot
from auxbit.collection.collection import load_model
from auxbit.collection.snapshot import Edit
from auxbit.errors import CollectionError, FileProblem, InvalidInput, InvalidParameter


@pytest.fixture(params=["disk", "memory"])
def place(request, tmp_path):
    """Where a collection is made."""
    return tmp_path / "c" if request.param == "disk" else None


# ---- ids

KINDS = {
    "integer": [7, 3, 1000, 5],
    "text": ["doc-1", "ünï", "5", "a b"],
    "uuid": [uuid.UUID(int=number) for number in (9, 4, 2**100, 1)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_ids_come_back_in_their_type_from_every_method(place, model, digits, kind):
    ids = KINDS[kind]
    with Collection.create(place, model, vectors="float32") as collection:
        added = collection.add(digits[:4], ids=ids, metadata=[{"row": row} for row in range(4)])
        assert added.tolist() == collection.ids.tolist() == ids
        assert collection.search(digits[2], 1).ids.tolist() == [ids[2]]
        assert [row[0] for row in collection.search(digits[:4], 1).ids.tolist()] == ids
        assert type(collection.search(digits[2], 1).ids.tolist()[0]) is type(ids[2])
        assert collection.metadata(ids[::-1]) == [{"row": row} for row in (3, 2, 1, 0)]
        assert [each["id"] for each in collection.get([ids[3], ids[0]])] == [ids[3], ids[0]]
        assert [each["id"] for each in collection] == ids
        assert collection.search(like=ids[1], k=1).ids.tolist() == [ids[1]]
        assert ids[0] in collection
        np.testing.assert_array_equal(collection.vectors([ids[1]]), digits[1:2])
        collection.add(digits[9:10], ids=[ids[1]], upsert=True)
        assert collection.ids.tolist() == [ids[0], ids[2], ids[3], ids[1]]
        assert collection.metadata([ids[1]]) == [{}]
        collection.compact()
        assert collection.delete([ids[2]]) == 1
        assert collection.ids.tolist() == [ids[0], ids[3], ids[1]]
        with pytest.raises(InvalidInput, match="is already in the collection"):
            collection.add(digits[:2], ids=[ids[2], ids[0]])
        assert len(collection) == 3


def test_ids_of_another_kind_or_of_mixed_kinds_are_refused_and_nothing_changes(place, model, digits):
    with Collection.create(place, model) as collection:
        collection.add(digits[:2], ids=["a", "b"])
        for ids, why in [
            ([1, 2], "the collection's ids are text, but 1 is integer"),
            (["c", 2], "must be of one type"),
            ([None, "x"], "no id in row 0"),
            (["", "x"], "must not be empty"),
            (["c\0", "x"], "must not contain the character NUL"),
            ({"c", "d"}, "ids is a set; expected a list, in the order of the items"),
            ("name", "X holds only vectors, without columns, so there is no column 'name'"),
            (["c", "c"], "comes twice|twice"),
            ([1.5, 2.5], "integers, text or UUIDs"),
            (["c"], "1 ids for the 2 rows"),
            (None, "ids of the collection are text: give an id for each row"),
            (np.ma.array([1, 2], mask=[0, 1]), "ids has masked numbers, 1 of"),
        ]:
            with pytest.raises(InvalidInput, match=why):
                collection.add(digits[:2], ids=ids)
        assert collection.ids.tolist() == ["a", "b"]
        assert 0 not in collection
        assert None not in collection
        with pytest.raises(InvalidInput, match="ids has masked numbers, 1 of"):
            collection.get(np.ma.array(["a", "b"], mask=[0, 1]))
        with pytest.raises(InvalidInput, match="codes has masked numbers, 2 of"):
            collection.add(digits[:1], codes=np.ma.masked_all((1, 2), np.uint8))
        for wrong in ([0], ["c"], [uuid.UUID(int=1)]):
            with pytest.raises(InvalidInput, match="is not in the collection"):
                collection.get(wrong)
        for one in ("a", np.int64(1), None):
            with pytest.raises(InvalidInput, match="ids must be a list; got"):
                collection.get(one)


def test_columns_of_rows_that_have_none_are_refused(place, digits):
    with pytest.raises(InvalidInput, match=r"there is no column \['title'\]"):
        Collection.create(place, digits[:50], bits=8, method="lsh", metadata=["title"])
    with pytest.raises(InvalidInput, match="there is no column 'embedding'"):
        Collection.create(place, digits[:50].tolist(), bits=8, method="lsh", vectors_column="embedding")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"ids": [1]}, "ids, metadata and vectors_column are for rows: give these, too"),
        ({"metadata": [{}]}, "ids, metadata and vectors_column are for rows"),
        ({"vectors_column": "x"}, "ids, metadata and vectors_column are for rows"),
        ({"method": "lsh"}, "method='lsh' is invalid: expected one to fit to rows"),
        ({"n_jobs": 0}, "n_jobs=0 is invalid"),
        ({"bits": 8, "decoder": "tables"}, "coding, mu, decoder and refine_bits are for rows"),
        ({"bits": 8, "refine_bits": 16}, "coding, mu, decoder and refine_bits are for rows"),
    ],
)
def test_what_only_rows_can_have_is_refused_for_a_collection_without_rows(place, model, given, why):
    with pytest.raises(InvalidInput, match=why):
        Collection.create(place, None if "bits" in given else model, **given)
    assert place is None or not place.exists()


def test_no_metadata_at_all_are_not_those_of_rows(place, model, digits):
    with Collection.create(place, model) as collection:
        with pytest.raises(InvalidInput, match="there are 0 metadata for the 3 rows of X: give one for each"):
            collection.add(digits[:3], metadata=[])
        assert len(collection.add(digits[:0], metadata=[])) == len(collection) == 0


def test_metadata_that_are_no_dicts_are_refused_by_row(place, digits):
    for labels in ([3, 1, 4], np.array(["a", "b", "c"]), [None, {"a": 1}, 5], [["a"]] * 3):
        row = 2 if labels[0] is None else 0
        with pytest.raises(InvalidInput, match=f"metadata row {row} is a .*; expected a dict, or None"):
            Collection.create(place, digits[:3], bits=8, method="lsh", metadata=labels)
    made = ({"row": row} for row in range(3))
    with Collection.create(place, digits[:3], bits=8, method="lsh", metadata=made) as collection:
        assert collection.metadata(collection.ids) == [{"row": row} for row in range(3)]


def test_after_the_largest_ids_items_are_numbered_as_if_these_were_not_there(place):
    codes, ids = np.arange(5, dtype=np.uint8)[:, None], [2**63 - 1, 2**63 - 2, 7, 8, 2**63 - 2**32]
    with Collection.create(place, bits=8) as collection:
        assert collection.add(codes=codes[:1], ids=(id_ for id_ in ids[:1])).tolist() == ids[:1]
        assert collection.add(codes=codes[:1]).tolist() == [1]
        for some in (slice(1, 2), slice(2, 5)):
            assert collection.add(codes=codes[some], ids=ids[some]).tolist() == ids[some]
        assert collection.add(codes=codes[:2]).tolist() == [9, 10]
        assert collection.ids.tolist() == [ids[0], 1, *ids[1:], 9, 10]
        assert collection.codes(ids).tolist() == codes.tolist()
        with pytest.raises(InvalidInput, match="id 9223372036854775806 is already in the collection"):
            collection.add(codes=codes[:2], ids=[2**63 - 2, 2**63 - 3])
        collection.add(codes=codes[4:], ids=[2**63 - 2], upsert=True)
        collection.delete([2**63 - 1])
        assert collection.codes([2**63 - 2]).tolist() == [[4]]
        assert collection.holds([2**63 - 1, 2**63 - 2, 0]).tolist() == [False, True, False]


def test_if_no_number_is_left_the_remedy_is_named(place):
    codes = np.zeros((3, 1), np.uint8)
    with Collection.create(place, bits=8) as collection:
        collection.add(codes=codes[:1], ids=[2**63 - 2**32 - 3])
        assert collection.add(codes=codes[:2]).tolist() == [2**63 - 2**32 - 2, 2**63 - 2**32 - 1]
        for ids in (None, [5]):
            with pytest.raises(
                InvalidInput, match=r"too few numbers .* for 1 rows\. Copy all items into a new"
            ):
                collection.add(codes=codes[:1], ids=ids)
        assert len(collection) == 3


@settings(max_examples=40)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("number"), st.integers(1, 5)),
            st.tuples(st.just("own"), st.lists(st.integers(0, 40), min_size=1, max_size=6, unique=True)),
            st.tuples(st.just("rising"), st.integers(0, 50)),
            st.tuples(st.just("delete"), st.integers(0, 3)),
            st.tuples(st.just("compact"), st.just(0)),
        ),
        max_size=12,
    )
)
def test_numbered_and_own_integers_never_get_mixed_up(changes):
    """Ids that we number, ids that are given, rising or not: each leads to its own code."""
    truth: dict[int, int] = {}
    with Collection.create(None, bits=16) as collection:
        for step, (what, value) in enumerate(changes):
            code = np.array([[step, 1]], dtype=np.uint8)
            ids = None
            if what == "delete":
                gone = list(truth)[:value]
                collection.delete(gone)
                for each in gone:
                    del truth[each]
                continue
            if what == "compact":
                collection.compact()
                continue
            if what == "own":
                ids = value
            elif what == "rising":
                ids = list(range(value, value + 40))
            n = value if ids is None else len(ids)
            added = collection.add(codes=np.repeat(code, n, axis=0), ids=ids, upsert=ids is not None)
            for each in added.tolist():
                assert ids is not None or each not in truth  # a number is never used again
                truth.pop(each, None)
                truth[each] = step
        assert collection.ids.tolist() == list(truth)
        assert collection.codes(list(truth))[:, 0].tolist() == list(truth.values())
        assert collection.holds(range(100)).tolist() == [each in truth for each in range(100)]


# ---- one query, answers


def test_one_vector_gets_one_row_of_answers_and_a_file_as_many_as_it_has(filled, digits, tmp_path):
    distances, ids = filled.search(digits[0], 5)
    assert distances.shape == ids.shape == (5,)
    np.testing.assert_array_equal(ids, filled.search(digits[:1], 5).ids[0])
    code = filled.model.encode(digits[:1])
    by_codes = filled.search(codes=code[0], k=5).ids
    np.testing.assert_array_equal(by_codes, filled.search(digits[0], 5, mode="hamming", rerank=False).ids)
    np.save(tmp_path / "q.npy", digits[:3])
    assert filled.search(tmp_path / "q.npy", 5).ids.shape == (3, 5)
    np.save(tmp_path / "codes.npy", code)
    np.testing.assert_array_equal(filled.search(str(tmp_path / "codes.npy"), 5).ids[0], by_codes)


def test_an_item_without_a_vector_is_searched_for_by_what_the_decoder_makes_of_it(place, model, digits):
    with Collection.create(place, model, coding="hash") as collection:
        collection.add(digits[:50])
        found = collection.search(like=7, k=5, mode="asymmetric")
        wanted = collection.search(model.decode(collection.codes([7]))[0], k=5, mode="asymmetric")
        np.testing.assert_array_equal(found.ids, wanted.ids)
        np.testing.assert_array_equal(found.distances, wanted.distances)
        assert collection.search(like=7, k=5).distances.dtype == np.int32
    with Collection.create(None, bits=8) as codes:
        codes.add(codes=np.zeros((2, 1), np.uint8))
        with pytest.raises(InvalidInput, match="holds codes without a model"):
            codes.search(like=0, mode="asymmetric")


def test_what_would_be_left_out_in_silence_is_refused(filled, digits, tmp_path):
    code, rows = filled.codes([0]), tmp_path / "rows.npy"
    np.save(rows, digits[:1])
    for asked in ({"X": digits[0]}, {"codes": code}):
        with pytest.raises(InvalidInput, match="give like alone, or X or codes"):
            filled.search(**asked, like=3)
        with pytest.raises(InvalidInput, match="give like alone, or X or codes"):
            filled.search_radius(**asked, like=3)
    for call in (filled.search, filled.add):
        with pytest.raises(InvalidInput, match="X is a file, and codes go with rows in memory"):
            call(rows, codes=code)


def test_answers_have_metadata_a_frame_and_something_to_look_at(filled, digits):
    found = filled.search(digits[0], 3, where="odd=true")
    assert found.metadata == filled.metadata(found.ids)
    frame = found.to_pandas()
    assert frame["id"].tolist() == found.ids.tolist()
    assert frame["odd"].all()
    for each in (filled, found):
        assert repr(each)
        assert "<table>" in each._repr_html_()
    nothing = filled.search(digits[0], 3, where={"row": -1})
    assert len(nothing.ids) == len(nothing.to_pandas()) == 0
    assert repr(nothing)


# ---- rows from files and frames


def frame_of(digits, n=60):
    import pandas as pd

    return pd.DataFrame(
        {
            "id": [f"doc-{row}" for row in range(n)],
            "embedding": list(digits[:n]),
            "year": [2000 + row if row % 3 else np.nan for row in range(n)],
            "lang": ["de" if row % 2 else "en" for row in range(n)],
        }
    )


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "dicts", ".parquet", ".jsonl", ".csv"])
def test_a_collection_is_made_of_one_file_or_frame(tmp_path, digits, kind):
    frame = frame_of(digits)
    path = tmp_path / f"docs{kind}"
    source = {
        "pandas": lambda: frame,
        "polars": lambda: pytest.importorskip("polars").from_pandas(frame),
        "arrow": lambda: pytest.importorskip("pyarrow").Table.from_pandas(frame),
        "dicts": lambda: [
            {name: value for name, value in row.items() if name != "year" or not np.isnan(value)}
            for row in frame.to_dict("records")
        ],
        ".parquet": lambda: frame.to_parquet(path) or path,
        ".jsonl": lambda: path.write_text(
            "".join(
                json.dumps(
                    {"id": row.id, "embedding": row.embedding.tolist(), "lang": row.lang}
                    | ({} if np.isnan(row.year) else {"year": row.year})
                ) + "\n"
                for row in frame.itertuples()
            )
        ) and path,
        ".csv": lambda: frame.assign(
            embedding=[json.dumps(row.tolist()) for row in frame["embedding"]]
        ).to_csv(path, index=False) or path,
    }[kind]()  # fmt: skip
    with Collection.create(
        tmp_path / "c", source, bits=8, method="itq", ids="id", vectors_column="embedding", vectors="float32"
    ) as collection:
        assert collection.ids.tolist() == frame["id"].tolist()
        np.testing.assert_array_equal(collection.vectors(["doc-3", "doc-4"]), digits[3:5])
        assert collection.metadata(["doc-3", "doc-4"]) == [{"lang": "de"}, {"year": 2004.0, "lang": "en"}]
        assert collection.describe()["fields"] == ["lang", "year"]
        assert collection.count("lang=de and year>=2030") == sum(
            year >= 2030 and lang == "de" for year, lang in zip(frame["year"], frame["lang"])
        )
        assert collection.stats().added == 0  # the model was fitted to these rows


def test_the_column_of_vectors_is_never_metadata_and_columns_can_be_chosen(tmp_path, digits):
    frame = frame_of(digits)
    with Collection.create(None, frame["embedding"], bits=8, method="itq", metadata=frame) as collection:
        assert collection.metadata([1]) == [{"id": "doc-1", "year": 2001.0, "lang": "de"}]
        collection.add(frame, vectors_column="embedding", metadata=["lang"])
        assert collection.metadata([61]) == [{"lang": "de"}]
        with pytest.raises(InvalidInput, match=r"lnag.*lang"):
            collection.add(frame, vectors_column="embedding", metadata=["lnag"])
        with pytest.raises(InvalidInput, match=r"embeding.*embedding"):
            collection.add(frame, vectors_column="embeding")
        assert len(collection) == 120


def test_a_file_is_added_in_batches_and_can_be_resumed(tmp_path, model, digits, monkeypatch):
    monkeypatch.setattr("auxbit.collection.collection.BATCH_ROWS", 10)
    np.save(tmp_path / "rows.npy", digits[:35])
    told = []
    with Collection.create(tmp_path / "c", model) as collection:
        append = Edit._append

        def fails_at_the_third(self, *rest):
            if self.state.positions == 20:
                raise KeyboardInterrupt
            append(self, *rest)

        with monkeypatch.context() as patched:
            patched.setattr(Edit, "_append", fails_at_the_third)
            with pytest.raises(KeyboardInterrupt):
                collection.add(tmp_path / "rows.npy", stopped=lambda row, n: told.append((row, n)))
        assert told == [(20, 35)]
        assert len(collection) == 20
        ids = collection.add(tmp_path / "rows.npy", first_row=20)
        assert ids.tolist() == list(range(20, 35))
        np.testing.assert_array_equal(collection.codes(), model.encode(digits[:35]))


def test_a_collection_whose_first_rows_cannot_be_added_is_not_left_behind(tmp_path, digits):
    for wrong, why in [
        ({"ids": ["a"] * 60}, "twice"),
        ({"metadata": [{"x": b"1"}] * 60}, "bytes|not JSON"),
        ({"metadata": [{}] * 3}, "3 rows for 60|3 metadata for the 60"),
        ({"vectors": "float8"}, "vectors='float8' is invalid"),
        ({"method": "bha"}, "bha"),
    ]:
        with pytest.raises(InvalidInput, match=why):
            Collection.create(tmp_path / "c", digits[:60], **{"bits": 4, "method": "itq"} | wrong)
        assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"ids": ["a"] * 60}, "twice"),
        ({"metadata": [{"x": b"1"}] * 60}, "bytes|not JSON"),
        ({"source": np.full((60, 64), np.nan)}, "NaN"),
        ({"source": np.full((60, 64), 1e6), "vectors": "float16"}, "float16 cannot hold"),
        ({"codes": np.zeros((60, 3), np.uint8), "source": None}, "3 columns of uint8; codes of 16 bits"),
        ({"ids": [*range(59), "x"]}, "of one type"),
    ],
)
def test_rows_that_cannot_be_added_do_not_cost_the_collection_that_they_were_to_replace(
    tmp_path, model, digits, wrong, why
):
    with Collection.create(tmp_path / "c", model, vectors="float32") as collection:
        collection.add(digits[:20], metadata=[{"row": row} for row in range(20)])
    given = {"source": digits[:60], "model": model, "overwrite": True} | wrong
    with pytest.raises(InvalidInput, match=why):
        Collection.create(tmp_path / "c", given.pop("source"), **given)
    with Collection(tmp_path / "c") as collection:
        assert collection.metadata(collection.ids) == [{"row": row} for row in range(20)]
        np.testing.assert_array_equal(collection.vectors(range(20)), digits[:20])
    Collection.create(tmp_path / "c", digits[:60], model=model, overwrite=True).close()
    assert len(Collection(tmp_path / "c", read_only=True)) == 60


# ---- metadata


def test_metadata_change_without_the_vectors(place, model, digits):
    with Collection.create(place, model) as collection:
        collection.add(digits[:5], metadata=[{"a": 1, "b": {"c": 2}}, None, {"a": 3}, None, None])
        codes, commit = collection.codes(), collection.state.commit
        assert collection.update_metadata([0, 1], {"a": 9, "new": "x"}) == 2
        assert collection.metadata([0, 1]) == [{"a": 9, "b": {"c": 2}, "new": "x"}, {"a": 9, "new": "x"}]
        collection.update_metadata([0, 2], [{"a": None, "b": {"d": 4}}, {"z": 1}])
        assert collection.metadata([0, 2]) == [{"b": {"c": 2, "d": 4}, "new": "x"}, {"a": 3, "z": 1}]
        assert collection.update_metadata(where="new=x", metadata={"kept": True}, replace=True) == 2
        assert collection.metadata([0, 1, 3]) == [{"kept": True}, {"kept": True}, {}]
        assert collection.count("kept=true") == 2
        np.testing.assert_array_equal(collection.codes(), codes)
        assert collection.state.commit == commit + 3
        for wrong, why in [
            (([7], {"a": 1}), "id 7 is not"),
            (([0], {"a": b"x"}), "bytes"),
            ((None, {}), "choose which"),
        ]:
            with pytest.raises(InvalidInput, match=why):
                collection.update_metadata(*wrong)
        assert collection.check() == []


def test_an_order_that_is_no_text_and_a_path_with_nul_are_refused(tmp_path, filled):
    with pytest.raises(InvalidParameter, match="order=5 is invalid: expected the name of a field"):
        filled.list(order=5)
    with pytest.raises(InvalidParameter, match="a name without the character NUL"):
        Collection.create(tmp_path / "a\0b", bits=8)


def test_items_are_listed_in_order_of_a_field_and_in_parts(place, model, digits):
    rows = [{"year": year} if year else None for year in (2003, 0, 2001, 2002, 0)]
    with Collection.create(place, model) as collection:
        collection.add(digits[:5], metadata=rows)

        def ids(**options):
            return [each["id"] for each in collection.list(**options)]

        assert ids() == [0, 1, 2, 3, 4]
        assert ids(limit=2, offset=1) == [1, 2]
        assert ids(order="year") == [2, 3, 0, 1, 4]
        assert ids(order="-year", limit=2) == [0, 3]
        assert ids(where="year>=2002") == [0, 3]
        assert ids(where="!year") == [1, 4]
        with pytest.raises(InvalidParameter, match="offset=-1 is invalid: expected an integer of at least 0"):
            ids(offset=-1)
        assert collection.get([2], codes=True)[0]["code"].shape == (2,)
        batches = list(collection.batches(2))
        assert [len(batch["ids"]) for batch in batches] == [2, 2, 1]
        assert [row for batch in batches for row in batch["metadata"]] == [row or {} for row in rows]


def test_a_field_that_no_item_has_is_said(place, model, digits):
    with Collection.create(place, model) as collection:
        collection.add(digits[:3], metadata=[{"year": 1, "a": {"b": 1}}] * 3)
        with pytest.warns(UserWarning, match=r"no item has the field 'yaer'.*year"):
            assert collection.count("yaer=1") == 0
        assert collection.count("a.b=1") == 3


def test_an_indexed_field_gives_the_same_answers_by_its_index(tmp_path, model, digits):
    rows = [{"year": 2000 + row % 7, "name": f"n{row % 5}", "Year": 1} for row in range(200)]
    asked = ["year=2003", "year>=2005", "name=n1,n2 and year<2002", "not year=2001", "name^=n"]
    with Collection.create(tmp_path / "c", model) as collection:
        collection.add(digits[:200], metadata=rows)
        before = [collection.list(each, limit=None) for each in asked]
        collection.index_field("year")
        collection.index_field("name")
        assert [collection.list(each, limit=None) for each in asked] == before
        from auxbit.data.where import Where

        condition, parameters = Where.of("year=2003").sql()
        with collection._storage.reading() as (connection, _):
            plan = connection.execute(
                f"EXPLAIN QUERY PLAN SELECT number FROM items WHERE {condition}", parameters
            ).fetchall()
        assert "field year" in str(plan)
        with pytest.raises(InvalidInput, match="'year' has an index, and SQLite takes 'Year' for the same"):
            collection.index_field("Year")
        with pytest.raises(InvalidInput, match=r"the field 'a\\x00' cannot be indexed"):
            collection.index_field("a\0", remove=True)
        collection.index_field("year", remove=True)
        assert [collection.list(each, limit=None) for each in asked] == before


# ---- what others can read


def test_anybody_can_list_the_items_by_sql(tmp_path, digits, model):
    with Collection.create(tmp_path / "c", model) as collection:
        collection.add(digits[:3])
        collection.add(digits[3:5], metadata=[{"year": 1}, {"year": 2}])
        collection.add(digits[5:7], ids=[90, 80])
        collection.delete([1])
    database = sqlite3.connect(tmp_path / "c" / "collection.sqlite")
    listed = database.execute("SELECT id, metadata FROM listing").fetchall()
    assert listed == [(0, None), (2, None), (3, '{"year":1}'), (4, '{"year":2}'), (90, None), (80, None)]
    schema = "\n".join(text for (text,) in database.execute("SELECT sql FROM sqlite_schema") if text)
    assert "An item without an id here has its number as its id" in schema
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    database.close()


def test_attachments_are_given_back_and_go_with_their_items(place, model, digits):
    with Collection.create(place, model) as collection:
        collection.add(digits[:3], attachments=[b"one", b"\0two", None])
        assert [collection.attachment(each) for each in (0, 1)] == [b"one", b"\0two"]
        for wrong in (["text"], "t", [[b"one"]]):
            with pytest.raises(InvalidParameter, match=r"expected bytes or None for each row. Encode"):
                collection.add(digits[:1], attachments=wrong)
        with pytest.raises(InvalidInput, match="item 2 has no attachment"):
            collection.attachment(2)
        collection.add(digits[:1], ids=[0], upsert=True, attachments=[b"new"])
        assert collection.attachment(0) == b"new"
        collection.compact()
        assert collection.attachment(1) == b"\0two"
        collection.delete([1])
        collection.add(digits[:1], ids=[1])
        with pytest.raises(InvalidInput, match="no attachment"):
            collection.attachment(1)


def test_attachments_of_the_rows_of_a_file_are_kept_over_its_batches(
    place, model, digits, tmp_path, monkeypatch
):
    monkeypatch.setattr("auxbit.collection.collection.BATCH_ROWS", 2)
    np.save(tmp_path / "rows.npy", digits[:5])
    with Collection.create(place, model) as collection:
        every = [b"0", b"1", None, b"3", b"4"]
        collection.add(tmp_path / "rows.npy", attachments=every, first_row=1)
        assert [collection.attachment(each) for each in (0, 2, 3)] == [b"1", b"3", b"4"]
        with pytest.raises(InvalidInput, match="there are 4 attachments for 5 rows"):
            collection.add(tmp_path / "rows.npy", attachments=every[1:])
        assert len(collection) == 4


# ---- opening


def test_what_cannot_be_opened_says_what_it_is_and_what_to_do(tmp_path, model):
    Collection.create(tmp_path / "papers.auxbit", model).close()
    with pytest.raises(CollectionError, match=r"paper\.auxbit does not exist\. Did you mean papers\.auxbit"):
        Collection(tmp_path / "paper.auxbit")
    (tmp_path / "folder").mkdir()
    with pytest.raises(CollectionError, match=r"is not a collection\. Collections are made by"):
        Collection(tmp_path / "folder")
    (tmp_path / "folder" / "manifest.jsonl").write_text("")
    with pytest.raises(CollectionError, match="folder was made by an older version of auxbit"):
        Collection.open(tmp_path / "folder")
    database = sqlite3.connect(tmp_path / "papers.auxbit" / "collection.sqlite")
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(CollectionError, match=r"has format 99.*Upgrade: pip install -U auxbit"):
        Collection.open(tmp_path / "papers.auxbit")
    with pytest.raises((FileProblem, CollectionError), match=r"xxx (cannot be read|does not exist)"):
        Collection(tmp_path / ("x" * 300))
    with pytest.raises(InvalidParameter, match="damaged='no' is invalid"):
        Collection(tmp_path / "papers.auxbit", damaged="no")


def test_a_folder_that_was_moved_or_replaced_is_neither_read_nor_written(tmp_path, model, digits):
    """The system lets us use open files under names that are gone: what is added there would be lost."""
    with Collection.create(tmp_path / "c", model) as collection:
        collection.add(digits[:3])
        (tmp_path / "c").rename(tmp_path / "moved")
        for use in (lambda: collection.add(digits[:1]), lambda: collection.search(digits[0])):
            with pytest.raises(CollectionError, match=r"c does not exist\."):
                use()
        Collection.create(tmp_path / "c", model).close()
        for use in (lambda: collection.add(digits[:1]), lambda: collection.search(digits[0])):
            with pytest.raises(
                CollectionError, match=r"c was replaced by another collection\. Open it again\."
            ):
                use()
    for name, n in (("moved", 3), ("c", 0)):
        with Collection(tmp_path / name) as collection:
            assert len(collection) == n


def test_codes_of_8192_bits_are_kept_and_found(place):
    codes = np.random.default_rng(0).integers(0, 256, (200, 1024), dtype=np.uint8)
    with Collection.create(place, bits=8192) as collection:
        collection.add(codes=codes)
        distances, ids = collection.search(codes=codes[:5], k=3)
        assert ids[:, 0].tolist() == [0, 1, 2, 3, 4]
        true = np.unpackbits(codes[:5, None] ^ codes[None], axis=2).sum(axis=2, dtype=int)
        np.testing.assert_array_equal(distances, np.sort(true, axis=1)[:, :3])
    with pytest.raises(InvalidInput, match=r"1\.\.8192"):
        Collection.create(place, bits=8193, overwrite=True)


def test_a_collection_in_memory_writes_nothing(tmp_path, model, digits, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Collection.create(None, model, vectors="float16") as collection:
        collection.add(digits[:200])
        collection.delete(range(50))
        collection.compact()
        collection.retrain(LSH(24, random_state=0).fit(digits))
        assert collection.search(digits[60], 1).ids.tolist() == [60]
    assert list(tmp_path.iterdir()) == []


def test_a_field_whose_name_utf8_lacks_is_refused_and_nothing_changes(place, model, digits):
    with Collection.create(place, model) as collection:
        collection.add(digits[:1], metadata=[{"half": "\ud800"}])
        for change in (
            lambda: collection.add(digits[:1], metadata=[{"\ud800": 1}]),
            lambda: collection.update_metadata([0], {"\ud800": 1}),
        ):
            with pytest.raises(InvalidInput, match=r"the field '\\ud800', whose name UTF-8 cannot hold"):
                change()
        assert collection.metadata(collection.ids) == [{"half": "\ud800"}]


def test_numbers_that_json_lacks_become_what_it_has(place, model, digits):
    row = {
        "day": np.datetime64("2020-01-02"),
        "n": np.int64(3),
        "id": uuid.UUID(int=5),
        "price": Decimal("1.5"),
    }
    with Collection.create(place, model) as collection:
        collection.add(digits[:1], metadata=[row])
        assert collection.metadata([0]) == [
            {"day": "2020-01-02", "n": 3, "id": str(uuid.UUID(int=5)), "price": 1.5}
        ]


def test_a_model_file_or_a_model_may_be_the_source(tmp_path, digits):
    model = ITQ(8, random_state=0).fit(digits)
    model.save(tmp_path / "m.safetensors")
    for source in (model, tmp_path / "m.safetensors", str(tmp_path / "m.safetensors")):
        with Collection.create(None, source) as collection:
            collection.add(digits[:9])
            np.testing.assert_array_equal(collection.codes(), model.encode(digits[:9]))
    with pytest.raises(FileProblem, match="does not exist"):
        Collection.create(None, tmp_path / "n.safetensors")


def test_a_model_is_fitted_to_the_rows_of_a_file_by_default(folder, digits):
    np.save("some.npy", digits[:200])
    model = ITQ(8, random_state=1).fit(digits[:200])
    hashed = model.encode(digits[:200])
    best = model.fit_decoder(digits[:200], "auto").encode(digits[:200], coding="optimal")
    for coding, wanted in (("hash", hashed), (None, best)):
        made = {"method": "itq", "bits": 8, "random_state": 1, "coding": coding}
        with Collection.create("new", "some.npy", **made, overwrite=True) as new:
            np.testing.assert_array_equal(new.codes(), wanted)
            assert new.state.trained == 200
            facts = new.describe()
            found = (facts["items"], facts["bits"], facts["method"], facts["coding"])
            assert found == (200, 8, "ITQ", coding or "optimal")
    assert load_model("new").n_bits == 8


def test_a_bad_row_of_a_file_is_named_by_its_place_in_the_file(folder, model, digits, monkeypatch):
    monkeypatch.setattr("auxbit.collection.collection.BATCH_ROWS", 100)
    bad = digits[:300].copy()
    bad[250, 3] = np.nan
    np.save("bad.npy", bad)
    np.save("ids.npy", np.arange(5000, 5300))
    Path("rows.jsonl").write_text("".join(json.dumps({"row": row}) + "\n" for row in range(300)))
    beside = {"ids": "ids.npy", "metadata": "rows.jsonl"}
    told = []
    with Collection.create("papers", model) as papers:
        with pytest.raises(InvalidInput, match=r"bad.npy contains NaN at row 250, column 3"):
            papers.add("bad.npy", **beside, stopped=lambda row, n: told.append((row, n)))
        assert told == [(200, 300)]
        papers.add("queries.npy", **beside, first_row=200)
        assert papers.metadata([5123]) == [{"row": 123}]
        with pytest.raises(InvalidInput, match=r"id 5000 is already in the collection \(300 of the 300"):
            papers.add("queries.npy", **beside)
        papers.add("queries.npy", **beside, upsert=True)
        assert len(papers) == 300


def test_retraining_may_change_the_method_and_the_bits(place, model, digits):
    with Collection.create(place, model, vectors="float32") as collection:
        collection.add(digits[300:])
        collection.retrain(method="lsh", bits=24, random_state=5)
        wanted = LSH(24, random_state=5).fit(digits[300:]).encode(digits[300:])
        np.testing.assert_array_equal(collection.codes(), wanted)
        collection.retrain(bits=12)
        assert collection.describe()["method"] == "LSH"
        assert collection.n_bits == 12
        with pytest.raises(InvalidInput, match="keeps its vectors: leave out X"):
            collection.retrain(X=digits[300:])


def test_a_condition_that_very_many_items_fulfil_is_read_in_parts(tmp_path, monkeypatch):
    rows, codes = [{"year": number % 5} for number in range(100)], np.zeros((100, 1), dtype=np.uint8)
    with Collection.create(tmp_path / "c", bits=8) as collection:
        collection.add(codes=codes, metadata=rows)
        collection.add(codes=codes, metadata=rows, ids=np.arange(10_000, 10_100))
        collection.add(codes=codes, metadata=rows, ids=np.arange(5000, 4900, -1))
        collection.add(codes=codes)
        collection.delete([3, 4, 50, 10_003, 4999])
        asked = ["year >= 3", "year = 1", "year != 1", "not year > 2", "year in (0, 4)"]
        wanted = [[item["id"] for item in collection.list(where, limit=None)] for where in asked]
        assert [len(each) for each in wanted] == [collection.count(where) for where in asked]
        monkeypatch.setattr(snapshot, "MOST_LISTED", 7)
        for _ in range(2):
            for where, ids in zip(asked, wanted, strict=True):
                assert [item["id"] for item in collection.list(where, limit=None)] == ids
            collection.index_field("year")


def test_near_duplicates_of_optimal_codes_are_refused_with_the_remedy(digits):
    with Collection.create(None, np.vstack([digits[:300], digits[:1]]), bits=16, decoder="linear") as items:
        with pytest.raises(InvalidInput, match='coding="hash"'):
            items.duplicates(1)
        assert any({0, 300} <= set(group.tolist()) for group in items.duplicates())
