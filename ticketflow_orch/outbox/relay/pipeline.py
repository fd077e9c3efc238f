"""The pipeline: the steps that an event takes in one drain, and what they share.

`fetch` claims it, `prepare` asks the business about it, the `executor` sends it and the `completer` writes down how
that ended. A `producer` for each destination leads events through; `lost` leads those whose holders went away.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from ticketflow_orch.outbox.relay.completer import Completer
from ticketflow_orch.outbox.relay.config import RelayConfig
from ticketflow_orch.outbox.relay.executor import Executor
from ticketflow_orch.outbox.relay.knowledge import Knowledge
from ticketflow_orch.outbox.relay.pacing import Pace
from ticketflow_orch.outbox.relay.state import DrainState


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What was given (`config`), what is shared (`state`, `knowledge`, `paces`) and what is done with events."""

    config: RelayConfig
    state: DrainState
    knowledge: Knowledge
    paces: Mapping[str, Pace]
    executor: Executor
    completer: Completer


def pipeline_of(config: RelayConfig, until: float, stop: threading.Event) -> Pipeline:
    """The pipeline of a drain that goes on `until` (on the monotonic clock) or until `stop` is set."""
    paces = {name: Pace(name, config.allowance(name), config.patience_with) for name in config.limits}
    state = DrainState(config.limits, until, stop)
    knowledge = Knowledge(config, paces)
    return Pipeline(
        config,
        state,
        knowledge,
        paces,
        Executor(config, state, knowledge, paces),
        Completer(config, state, knowledge, paces),
    )
