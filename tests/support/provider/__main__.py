"""The provider as a process: `python -m tests.support.provider BOOKS PORT SECONDS_AFTER_WHICH_KEYS_ARE_FORGOTTEN`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.provider.server import serve


def main() -> None:
    books, port, forget_after = sys.argv[1:]
    server = serve(int(port), Path(books), float(forget_after))
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever(poll_interval=0.05)


if __name__ == "__main__":
    main()
