"""Movements that cannot all be right, and how far they were searched for."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, text

from ticketflow_orch.schema.columns import column, exactly_when, index, instant, one_of, stamp, table, text_column

movement_anomaly = table(
    "movement_anomaly",
    column("movement_id", sa.BigInteger),
    text_column("why"),
    *(column(name, sa.BigInteger) for name in ("latest_id", "organization_id")),
    column("currency", sa.CHAR(3)),
    stamp("found_at"),
    column("accepted_to", sa.BigInteger, nullable=True),
    instant("accepted_at", nullable=True),
    text_column("accepted_by", nullable=True),
    sa.PrimaryKeyConstraint("movement_id", "why"),
    one_of("why", "BEYOND", "EARLIER", "TWICE"),
    exactly_when("accepted_at", "accepted_to IS NOT NULL"),
    exactly_when("accepted_by", "accepted_to IS NOT NULL"),
    index(
        "movement_anomaly_open_idx",
        "organization_id",
        "currency",
        where="latest_id >= coalesce(accepted_to, 0)",
    ),
)

anomaly_search = table(
    "anomaly_search",
    column("only_one", sa.Boolean, CheckConstraint("only_one"), primary_key=True, server_default=text("true")),
    column("searched_to", sa.BigInteger, server_default=text("0")),
)
