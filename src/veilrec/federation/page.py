"""What a browser needs to take part in a federation of `veil`: one public file that holds nothing of any user.

A browser makes no plan: the file says what the plan comes to. It has the shape of the model, the public content, how a
history is read, the bound of every round and what its noise leaves to be told of a message. The client in the browser
(web/src/federation.ts) does with it what `client.federated` does with a plan.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from veilrec.client.veil import CLIPS, VeilLocalTrainer
from veilrec.core.errors import BadInput
from veilrec.core.files import replacing
from veilrec.core.plan import Plan
from veilrec.core.schema import RoundSpec
from veilrec.federation.facts import FederationFacts, largest_content
from veilrec.federation.federation import joined
from veilrec.privacy.accounting.composition import flattened
from veilrec.privacy.events import Event, SampledEvent
from veilrec.privacy.mechanisms.reports import VoteReports
from veilrec.privacy.mechanisms.schedules import ScheduledSum
from veilrec.wire import rounds

FORMAT = 3
ABOUT = "federation"  # in the metadata of the file
CONTENT = "content."


def content_of(known: FederationFacts) -> bytes:
    """Encode what browsers act on."""
    return save(arrays_of(known), {ABOUT: json.dumps(about(known))})


def digest_of(known: FederationFacts) -> str:
    """Digest what browsers act on, as part of what everybody agrees on: no browser is told something else."""
    return hashlib.sha256(content_of(known)).hexdigest()


def write_page(known: FederationFacts, path: Path) -> int:
    """Write the public file, and return its size in bytes.

    First what everybody has agreed on, of which invitations and secure sums have the digest, then the coordinator's
    address, and then what browsers act on, whose digest stands in the first.
    """
    made, acted = known.federation, content_of(known)
    if hashlib.sha256(acted).hexdigest() != made.page:
        raise BadInput(
            "this machine makes another public file than the one that was agreed on: write it where init ran"
        )
    content = joined(made.agreed(), joined(made.address.encode(), acted))
    with replacing(path, mode=0o644) as part:
        part.write_bytes(content)
    return len(content)


def about(known: FederationFacts) -> dict[str, Any]:
    """All that is not a table."""
    made, plan = known.federation, known.plan
    trainer, sums, votes = _parts(known)
    secure = {"helpers": list(made.helpers), "least": made.least, "max_clients": plan.max_clients}
    return {
        "format": FORMAT,
        "id": made.id,
        "plan": made.plan,
        "method": made.method,
        "dataset": made.dataset,
        "rounds": made.rounds,
        "clients": made.clients,
        "guarantee": made.guarantee,
        "largest_content": largest_content(known),
        "tensors": [
            {"name": tensor.name, "shape": tensor.shape, "by_row": tensor.by_row, "learnt": tensor.learnt}
            for tensor in plan.schema.tensors
        ],
        "reading": asdict(trainer.reading),
        "units": dict(trainer.steps.units),
        "shares": {name: trainer.steps.shares[name] for name in trainer.names},
        "clips": {name: CLIPS[name] for name in trainer.names},
        "noise": dict(trainer.steps.noise),
        "unit": sums.unit,
        "adjacency": sums.adjacency,
        "delta": sums.claimed_delta,
        "bounds": list(sums.clip_norms),
        "asked": [_asked(plan, number, bound) for number, bound in enumerate(sums.clip_norms)],
        "sigma": sums.sigma,
        "sigma_of_votes": votes.sigma,
        "mu_of_report": _mu(votes.event()),
        "mu_of_rounds": [_mu(sums.event_in(RoundSpec(number))) for number in range(made.rounds)],
        "secure_sums": None if made.secagg == "none" else secure,
    }


def _asked(plan: Plan, number: int, bound: float) -> list[str]:
    """The tensors that a round is about; a browser declines one about others, or with another bound."""
    spec = plan.round_planner.next(number, plan.start, None)
    if not rounds.is_planned(spec, RoundSpec(number, clip_norm=bound, tensors=spec.tensors), plan.schema):
        raise BadInput("a round of this federation is about more than tensors and a bound: a browser cannot tell it")
    return [tensor.name for tensor in spec.view(plan.schema).tensors]


def arrays_of(known: FederationFacts) -> dict[str, NDArray[Any]]:
    """Public content, the coordinates of weights, and the items' ids: as exact as clients in Python have them."""
    trainer, _, _ = _parts(known)
    items = known.people.items
    wide = {**trainer.content.arrays(CONTENT), "whitening": trainer.whitening}
    wide |= {"ids.offsets": items.offsets, "ids.data": items.data}
    return {name: np.ascontiguousarray(values) for name, values in wide.items()}


def _parts(known: FederationFacts) -> tuple[VeilLocalTrainer, ScheduledSum, VoteReports]:
    """Parts of the plan; BadInput where a browser could not do what its clients do."""
    made, plan = known.federation, known.plan
    votes = None if plan.reports is None else plan.reports.mechanism
    if not (
        isinstance(plan.trainer, VeilLocalTrainer)
        and isinstance(plan.mechanism, ScheduledSum)
        and isinstance(votes, VoteReports)
    ):
        raise BadInput(f"a browser takes part in federations of veil on a catalogue, and this one is of {made.method}")
    if made.rehearsal or made.unprotected:
        raise BadInput("browsers take part in no rehearsals: make the federation without")
    if made.secagg == "pairs":
        raise BadInput(
            "browsers take part in the open or with helpers, not in sums among clients: use --secagg helpers"
        )
    return plan.trainer, plan.mechanism, votes


def _mu(event: Event) -> float:
    """Privacy loss mu of one message as ledgers count it, without amplification by sampling."""
    parts = flattened(event)
    sampled = [e.mu for e, count in parts.counts for _ in range(count) if isinstance(e, SampledEvent)]
    if len(sampled) < sum(count for _, count in parts.counts) or parts.in_plaintext:
        raise BadInput("a message of this federation has other noise than a Gaussian: a browser cannot count it")
    return float(np.sqrt(parts.mu**2 + sum(mu**2 for mu in sampled)))
