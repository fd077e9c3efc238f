"""Anomalies: movements that cannot all be right, as far as they were searched for, and what people accepted of them.

`latest_id` is the movement that made it one. What was accepted is accepted below `accepted_to`: a later movement opens
it again. A payout that is held for anomalies says below which movement they were.
"""

from alembic import op

revision = "0017"
down_revision = "0016"

ANOMALIES = """
CREATE TABLE movement_anomaly (
    movement_id bigint NOT NULL,
    why text NOT NULL CHECK (why IN ('BEYOND', 'EARLIER', 'TWICE')),
    latest_id bigint NOT NULL,
    organization_id bigint NOT NULL,
    currency char(3) NOT NULL,
    found_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    accepted_to bigint,
    accepted_at timestamptz CHECK ((accepted_at IS NOT NULL) = (accepted_to IS NOT NULL)),
    accepted_by text CHECK ((accepted_by IS NOT NULL) = (accepted_to IS NOT NULL)),
    PRIMARY KEY (movement_id, why)
);
CREATE INDEX movement_anomaly_open_idx ON movement_anomaly (organization_id, currency)
    WHERE latest_id >= coalesce(accepted_to, 0);

CREATE TABLE anomaly_search (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    searched_to bigint NOT NULL DEFAULT 0
);
INSERT INTO anomaly_search DEFAULT VALUES;
CREATE TRIGGER anomaly_search_goes_on BEFORE UPDATE ON anomaly_search FOR EACH ROW
    WHEN (OLD.searched_to > NEW.searched_to)
    EXECUTE FUNCTION refuse('what was searched for anomalies stays searched');

ALTER TABLE payout ADD COLUMN anomalies_to bigint;
"""


def upgrade() -> None:
    op.execute(ANOMALIES)
