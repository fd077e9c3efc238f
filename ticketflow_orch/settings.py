"""Everything that can be configured, read from the environment once and validated."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from ticketflow_orch.errors import InputError
from ticketflow_orch.months import Month, zone


def _month_key(value: str) -> str:
    return str(Month.parse(value))


def _zone_name(value: str) -> str:
    return zone(value).key


class Settings(BaseSettings):
    """One field per variable `TICKETFLOW_<FIELD>`; every default suits a laptop."""

    model_config = SettingsConfigDict(env_prefix="TICKETFLOW_", env_ignore_empty=True, frozen=True)

    home: Path = Field(Path(".ticketflow"), description="Where the embedded server and Dagster's instance live.")
    database_url: SecretStr | None = Field(None, description="TicketFlow's database; unset: the embedded server.")
    dagster_database_url: SecretStr | None = Field(
        None, description="Dagster's own storage; needed exactly when database_url is set."
    )
    business_timezone: Annotated[str, AfterValidator(_zone_name)] = Field(
        "Europe/Madrid", description="IANA zone of the schedules and of the partitions' calendar."
    )
    first_month: Annotated[str, AfterValidator(_month_key)] = Field(
        "2025-01", description="YYYY-MM; the first partition. Earlier movements are refused at import."
    )
    fixed_clock: AwareDatetime | None = Field(
        None, description="ISO instant with offset; business time stands still there (demos, rehearsals)."
    )
    chunk_size: int = Field(20_000, ge=1, description="Organizations settled per transaction.")
    chunk_pause: float = Field(0, ge=0, description="Seconds a settlement worker rests between two chunks.")
    workers: int = Field(2, ge=1, le=32, description="Settlement workers (threads, one connection each) per run.")
    writer_wait: float = Field(
        60, gt=0, description="Seconds a settlement waits for transactions that were writing movements at its cutoff."
    )
    parked_limit: int = Field(100, ge=0, description="Organizations a pass may park before it gives up.")


@cache
def settings() -> Settings:
    """The process's settings.

    Raises:
        InputError: a variable holds a value that its field refuses; names the variable, the value's fault and it.
    """
    return read_settings()


def read_settings() -> Settings:
    """The settings as the environment stands now; see `settings`."""
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        variable = f"TICKETFLOW_{'_'.join(str(part) for part in first['loc']).upper()}"
        raise InputError(f"{variable}={first['input']!r} is refused: {first['msg']}.") from None
    except InputError as error:
        raise InputError(f"A TICKETFLOW_ variable is refused: {error}") from None
