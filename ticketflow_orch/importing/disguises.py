"""Files that are not what their names say: recognised by their first bytes, and refused with what they are."""

from __future__ import annotations

import codecs

from ticketflow_orch.errors import InvalidInput

# So much of a file's beginning is looked at.
HEAD = 4096
_CSV_AS = "save it as comma-separated CSV in UTF-8"
_GZIP = b"\x1f\x8b"
_PARQUET = b"PAR1"
_SIGNATURES = (
    (_PARQUET, "Parquet"),
    (b"PK\x03\x04", "a ZIP archive, as spreadsheets (.xlsx, .ods) are"),
    (b"PK\x05\x06", "a ZIP archive"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old spreadsheet (.xls)"),
    (_GZIP, "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "Zstandard"),
    (b"%PDF", "PDF"),
    (b"SQLite format 3\x00", "an SQLite database"),
    # The longer one first: it begins like the shorter one.
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_MARKUP = {b"<": "HTML or XML", b"{": "JSON", b"[": "JSON"}
_ENDING_OF = {"gzip": ".csv.gz", "Parquet": ".parquet"}


def require_csv(file: str, head: bytes, *, packed: bool = False) -> None:
    """Refuse `file` unless it begins like text in UTF-8; `packed`: `head` came out of a gzip file.

    Raises:
        InvalidInput: says what it is.
    """
    what = _what(head)
    if what is None:
        return
    if packed:
        raise InvalidInput(f"What is packed in {file} is no CSV but {what}; {_CSV_AS}, and pack that.")
    raise InvalidInput(f"{file} is no CSV but {what}; {_fix(file, what)}.")


def require_gzip(file: str, head: bytes) -> None:
    """Refuse `file` unless it begins as gzip does.

    Raises:
        InvalidInput: says what it is.
    """
    if head.startswith(_GZIP):
        return
    if not head:
        raise InvalidInput(f"{file} is empty, and so not a complete gzip file; make it anew.")
    what = _what(head)
    fix = f"name it {_stem(file)}.csv" if what is None else _fix(file, what)
    raise InvalidInput(f"{file} is not a complete gzip file but {what or 'text that is not packed'}; {fix}.")


def require_parquet(file: str, head: bytes) -> None:
    """Refuse `file` unless it begins as Parquet does.

    Raises:
        InvalidInput: says what it is.
    """
    if head.startswith(_PARQUET):
        return
    if not head:
        raise InvalidInput(f"{file} is empty, and so not a readable Parquet file; make it anew.")
    what = _what(head)
    fix = f"name it {_stem(file)}.csv" if what is None else _fix(file, what)
    raise InvalidInput(f"{file} is not a readable Parquet file but {what or 'text'}; {fix}.")


def _what(head: bytes) -> str | None:
    """What begins like this; None for what may be CSV."""
    for signature, what in _SIGNATURES:
        if head.startswith(signature):
            return what
    # What has no byte order mark: every other byte of western text is zero.
    if head[:64].count(0) * 3 > len(head[:64]):
        return "UTF-16"
    return _MARKUP.get(head.removeprefix(codecs.BOM_UTF8).lstrip()[:1])


def _fix(file: str, what: str) -> str:
    return f"name it {_stem(file)}{_ENDING_OF[what]}" if what in _ENDING_OF else _CSV_AS


def _stem(file: str) -> str:
    return file.partition(".")[0]
