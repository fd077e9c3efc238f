"""Settings of the small clusters of tests, and what only root can try."""

from __future__ import annotations

import os

import pytest

SMALL = {"shared_buffers": "16MB", "fsync": "off"}
ROOT = os.geteuid() == 0
only_root = pytest.mark.skipif(not ROOT, reason="needs root, which runs Postgres as another account")
