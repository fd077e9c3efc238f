"""One row: whose database this is and what decides about money in it; changes of that, and of organizations."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, text

from ticketflow_orch.schema.columns import column, identity, instant, month, stamp, table, text_column

installation = table(
    "installation",
    column("only_one", sa.Boolean, CheckConstraint("only_one"), primary_key=True, server_default=text("true")),
    column("id", sa.Uuid, server_default=text("gen_random_uuid()")),
    text_column("business_timezone", nullable=True),
    month("first_month", nullable=True),
    month("payouts_from", nullable=True),
    instant("mail_from", nullable=True),
    column("auto_close", sa.Boolean, nullable=True),
    text_column("routes_digest", nullable=True),
    stamp("changed_at"),
    text_column("changed_by"),
    column("rehearsal", sa.Boolean, server_default=text("false")),
    CheckConstraint("(first_month IS NULL) = (business_timezone IS NULL)"),
    CheckConstraint("(auto_close IS NULL) = (business_timezone IS NULL)"),
)

installation_change = table(
    "installation_change",
    identity(always=True),
    text_column("name"),
    *(text_column(name, nullable=True) for name in ("before", "after")),
    instant("changed_at"),
    text_column("changed_by"),
    text_column("changed_role", server_default=text("CURRENT_USER")),
)

organization_change = table(
    "organization_change",
    identity(always=True),
    column("organization_id", sa.BigInteger),
    text_column("name"),
    *(text_column(name, nullable=True) for name in ("before", "after")),
    stamp("changed_at"),
    text_column("changed_by"),
    text_column("changed_role", server_default=text("SESSION_USER")),
)
