"""Work in chunks: each row once, in key order, past those that others hold, and a bad row alone is set aside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from ticketflow_orch.db.errors import in_words
from ticketflow_orch.errors import InvalidInput, TicketflowError
from ticketflow_orch.jobs.batches import BadRow, ChunkedWork, InKeyOrder, Taken, Wanted, named


@pytest.fixture
def engine(engine: Engine) -> Engine:
    """A database with ten rows to be done."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE task (id bigint PRIMARY KEY, amount integer, done boolean)"))
        connection.execute(text("INSERT INTO task SELECT id, 1, false FROM generate_series(1, 10) AS id"))
    return engine


def take(connection: Connection, wanted: Wanted) -> Taken:
    due = text(f"""
        SELECT id FROM task
        WHERE NOT done AND id > :after AND id <> ALL (CAST(:left_out AS bigint[]))
            AND (CAST(:only AS bigint[]) IS NULL OR id = ANY (CAST(:only AS bigint[])))
        ORDER BY id LIMIT :size {wanted.locking("task")}
    """)
    [after] = wanted.after or (0,)
    only = None if wanted.only is None else list(wanted.only)
    values = {"size": wanted.size, "left_out": list(wanted.left_out), "only": only, "after": after}
    ids = connection.execute(due, values).scalars().all()
    return Taken(ids, (ids[-1],) if ids else None)


def apply(connection: Connection, ids: Sequence[int]) -> list[int]:
    connection.execute(text("UPDATE task SET done = 1 / amount > 0 WHERE id = ANY (:ids)"), {"ids": list(ids)})
    return list(ids)


def work(engine: Engine, size: int = 4) -> ChunkedWork[list[int]]:
    return ChunkedWork(engine, take, apply, size)


def spoil(engine: Engine, *ids: int) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE task SET amount = 0 WHERE id = ANY (:ids)"), {"ids": list(ids)})


@contextmanager
def held(engine: Engine, row: int) -> Iterator[Connection]:
    with engine.connect() as connection, connection.begin():
        connection.execute(text("SELECT FROM task WHERE id = :id FOR UPDATE"), {"id": row})
        yield connection


def test_all_that_is_due_is_done_in_key_order_a_chunk_at_a_time(engine: Engine) -> None:
    assert list(work(engine).run()) == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
    assert list(work(engine).run()) == []


def test_what_others_hold_is_passed_over_and_swept_when_they_let_go(engine: Engine) -> None:
    with held(engine, 2):
        assert list(work(engine).run()) == [[1, 3, 4, 5], [6, 7, 8, 9], [10]]
        assert list(work(engine).sweep(0.1)) == []
    assert list(work(engine).sweep(0.1)) == [[2]]


@pytest.mark.parametrize("size", [1, 3, 10])
def test_bad_rows_are_set_aside_one_by_one_and_all_others_done(engine: Engine, size: int) -> None:
    spoil(engine, 3, 4, 10)
    chunks = work(engine, size)
    assert sorted(row for done in chunks.run() for row in done) == [1, 2, 5, 6, 7, 8, 9]
    assert sorted((bad.id, bad.error) for bad in chunks.bad) == [(row, "division by zero") for row in (3, 4, 10)]
    assert list(chunks.sweep(0.1)) == []


def test_what_is_no_fault_of_a_row_ends_the_work_with_all_before_it_kept(engine: Engine) -> None:
    def fail_later(connection: Connection, ids: Sequence[int]) -> list[int]:
        if ids[0] > 4:
            connection.execute(text("SELECT * FROM nowhere"))
        return apply(connection, ids)

    chunks = ChunkedWork(engine, take, fail_later, 4)
    with pytest.raises(DBAPIError, match="nowhere"):
        list(chunks.run())
    assert list(work(engine).run()) == [[5, 6, 7, 8], [9, 10]]


def in_key_order(engine: Engine, size: int, bad: list[BadRow], fault: str = "1 / amount > 0") -> list[list[int]]:
    """What each chunk has done of all rows, whether or not they were."""

    def next_ids(connection: Connection, after: int, size: int) -> list[int]:
        rows = text("SELECT id FROM task WHERE id > :after ORDER BY id LIMIT :size")
        return list(connection.execute(rows, {"after": after, "size": size}).scalars())

    def step(connection: Connection, after: int, size: int) -> tuple[int | None, list[int]]:
        ids = next_ids(connection, after, size)
        connection.execute(text(f"UPDATE task SET done = {fault} WHERE id = ANY (:ids)"), {"ids": ids})
        return ids[-1] if len(ids) == size else None, ids

    def leave_out(connection: Connection, after: int, error: Exception) -> int:
        [row] = next_ids(connection, after, 1)
        bad.append(BadRow(row, in_words(error)))
        return row

    return list(InKeyOrder(engine, step, leave_out, first=0, size=size).run())


@pytest.mark.parametrize("size", [1, 3, 4, 10, 100])
def test_in_key_order_bad_rows_are_left_out_one_by_one_and_all_others_done(engine: Engine, size: int) -> None:
    spoil(engine, 1, 3, 4, 10)
    bad: list[BadRow] = []
    assert [row for chunk in in_key_order(engine, size, bad) for row in chunk] == [2, 5, 6, 7, 8, 9]
    assert bad == [BadRow(row, "division by zero") for row in (1, 3, 4, 10)]


def test_chunks_in_key_order_grow_again_behind_a_bad_row(engine: Engine) -> None:
    spoil(engine, 2)
    bad: list[BadRow] = []
    assert in_key_order(engine, 4, bad) == [[1], [3], [4, 5], [6, 7, 8, 9], [10]]


def test_in_key_order_too_a_fault_of_no_row_ends_the_work(engine: Engine) -> None:
    bad: list[BadRow] = []
    with pytest.raises(DBAPIError, match="nowhere"):
        in_key_order(engine, 4, bad, "nowhere")
    assert bad == []


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        # An index takes a third of a page at most.
        (
            "INSERT INTO endless SELECT string_agg(md5(CAST(n AS text)), '') FROM generate_series(1, 200) AS n",
            "maximum",
        ),
        ("SELECT CAST('infinity' AS timestamptz)", "timestamp too large"),
    ],
)
def test_what_no_index_or_no_value_of_python_holds_is_a_row_s_own_fault(
    engine: Engine, statement: str, why: str
) -> None:
    def step(connection: Connection, after: int, size: int) -> tuple[None, object]:
        return None, connection.execute(text(statement)).fetchall()

    def leave_out(connection: Connection, after: int, error: Exception) -> int:
        raise InvalidInput(in_words(error))

    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE endless (name text UNIQUE)"))
    with pytest.raises(TicketflowError, match=why):
        list(InKeyOrder(engine, step, leave_out, first=0, size=1).run())


def test_a_hundred_bad_rows_are_named_and_the_others_counted() -> None:
    assert named([BadRow(1, "One."), BadRow("hall-7", "Two.")]) == "One. Two."
    many = named([BadRow(number, f"Row {number}.") for number in range(1_234)])
    assert many.startswith("Row 0. ")
    assert many.endswith(" Row 99. And 1,134 more.")
