"""The README's commands, as a person gives them, and what must be true of them; needs nothing but Python itself.

In a container it is the first process, `python3 commands.py container ARCHIVE PORT`: it puts the project that the
archive holds into root's home and into that of another account, and gives each command there. It takes no orphans
away, as an init would. `python3 commands.py demo FOLDER` is for a project that lies there already.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOMEBODY = "somebody"
ACTIVATE = "source .venv/bin/activate"
UNCHANGED = "this run changed nothing"
WITHIN = 5.0


def main() -> int:
    """Run what the arguments name; returns 0 when all of it was as it must be."""
    wanted, place, *port = sys.argv[1:]
    try:
        if wanted == "container":
            judge_container(Path(place), port[0])
        else:
            judge_demo(Path(place))
            if port:
                judge_server(Path(place), int(port[0]))
    except FailedError as failure:
        say(f"  failed: {failure}")
        return 1
    return 0


def judge_container(archive: Path, port: str) -> None:
    """All of it as root in root's home, and as somebody else; then the whole suite as root."""
    mine = Path.home() / "ticketflow"
    unpack(archive, mine)
    say("as root, in root's home")
    judge_demo(mine)
    judge_server(mine, int(port))
    subprocess.run(["/usr/sbin/useradd", "--create-home", SOMEBODY], check=True)
    home = Path("/home") / SOMEBODY
    home.chmod(0o700)
    theirs = home / "mi carpeta añeja" / "ticketflow"
    unpack(archive, theirs)
    for path in (theirs.parent, theirs, *theirs.rglob("*")):
        shutil.chown(path, SOMEBODY, SOMEBODY)
    say(f"as somebody else, in {theirs}")
    command = [sys.executable, __file__, "demo", theirs, port]
    environment = {**os.environ, "HOME": str(home)}
    done = subprocess.run(
        command, check=False, user=SOMEBODY, group=SOMEBODY, extra_groups=[], env=environment, cwd=home
    )
    require(done.returncode == 0, "see above")
    say("make test, as root, in root's home")
    # The suite wants its output seen while it runs.
    done = subprocess.run(["make", "test", f"ARGS={os.environ.get('ARGS', '')}"], cwd=mine, check=False)
    require(done.returncode == 0, "make test")


def judge_demo(project: Path) -> None:
    """The demo twice."""
    with step("make demo"):
        run(project, "make", "demo")
        require(not is_served(project), "it left its server running")
    with step("make demo, a second time"):
        require(UNCHANGED in run(project, "make", "demo"), "the second demo changed something")
    with step("ticketflow, found as the README says"):
        said = run(project, "bash", "-c", f"{ACTIVATE} && ticketflow status")
        require("CLOSED" in said, f"it shows no month that is closed:\n{said}")


def judge_server(project: Path, port: int) -> None:
    """The UI, and the server that stays; nothing else may run on the machine."""
    with step("make ui and Ctrl-C"):
        end_by_ctrl_c(project, port)
    with step("ticketflow db start, killed, db start and stop"):
        ticketflow = ".venv/bin/ticketflow"
        run(project, ticketflow, "db", "start")
        [server] = servers()
        os.kill(server, signal.SIGKILL)
        run(project, ticketflow, "db", "start")
        require("is stopped" in run(project, ticketflow, "db", "stop"), "it was not running")
        require(servers() == [], "the server is still running")


def unpack(archive: Path, folder: Path) -> None:
    """Put the project into `folder`."""
    folder.mkdir(parents=True)
    subprocess.run(["tar", "-x", "-f", archive, "-C", folder, "--no-same-owner"], check=True)


@contextmanager
def step(name: str) -> Iterator[None]:
    """Say how long what is done in the block took."""
    since = time.monotonic()
    yield
    say(f"  {name}: {time.monotonic() - since:.0f} s")


class FailedError(Exception):
    """Something was not as it must be."""


def require(condition: bool, otherwise: str) -> None:
    """Raise FailedError, which says `otherwise`, unless `condition` holds."""
    if not condition:
        raise FailedError(otherwise)


def say(line: str) -> None:
    """Print `line` at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run(project: Path, *command: str) -> str:
    """What a command says that must succeed and print no traceback."""
    done = subprocess.run(
        command, cwd=project, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    require(done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
    require("Traceback" not in done.stdout, f"{' '.join(command)} printed a traceback:\n{done.stdout}")
    return done.stdout


def end_by_ctrl_c(project: Path, port: int) -> None:
    """Start the UI, and press Ctrl-C: everything must be gone within five seconds."""
    before = processes()
    shown = subprocess.Popen(
        ["make", "ui", f"PORT={port}"],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    said = []
    for line in shown.stdout or ():
        said.append(line)
        if line.startswith("TicketFlow is at"):
            break
    else:
        raise FailedError(f"it did not come up:\n{''.join(said)}")
    running = servers()
    require(len(running) == 1, f"one server must run, and these do: {running}")
    # The terminal sends it to all in the foreground.
    os.killpg(shown.pid, signal.SIGINT)
    since = time.monotonic()
    while left := {pid: command for pid, command in processes().items() if pid not in before}:
        require(time.monotonic() - since < WITHIN, f"after {WITHIN:.0f} s there is still {left}")
        time.sleep(0.05)
    say(f"    all of it was gone {time.monotonic() - since:.1f} s after Ctrl-C")
    rest = shown.communicate()[0]
    require("Traceback" not in rest, f"it printed a traceback:\n{rest}")


def processes() -> dict[int, str]:
    """Everything that runs here: ids and command lines, without the dead; where there is no init, they stay."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            command = (folder / "cmdline").read_bytes()
        except OSError:  # gone meanwhile
            continue
        if state not in "ZX":
            found[int(folder.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def is_served(project: Path) -> bool:
    """Whether a server runs with the data of `project`."""
    data = str((project / ".ticketflow" / "postgres").resolve())
    return any(f"/postgres -D {data} " in command for command in processes().values())


def servers() -> list[int]:
    """The Postgres servers that run here; what one has just forked has its command line for a moment."""
    named = {pid for pid, command in processes().items() if "/postgres -D " in command}
    return [pid for pid in named if parent(pid) not in named]


def parent(pid: int) -> int | None:
    """Whose child the process is; None once it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


if __name__ == "__main__":
    sys.exit(main())
