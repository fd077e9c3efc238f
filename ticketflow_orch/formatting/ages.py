"""How long something has lasted, for people."""

from __future__ import annotations

from datetime import timedelta


def written_out(age: timedelta) -> str:
    """`age` in its two largest units: "3 d 4 h", "12 min 5 s"."""
    seconds = round(age.total_seconds())
    parts = [
        (seconds // 86_400, "d"),
        (seconds // 3_600 % 24, "h"),
        (seconds // 60 % 60, "min"),
        (seconds % 60, "s"),
    ]
    first = next((place for place, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2])
