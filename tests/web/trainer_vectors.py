"""Test vectors of a client of a federation: synthetic rounds of `veil`, and what Python's trainer and codec answer."""

import base64
import hashlib
import json
from dataclasses import asdict, replace

import numpy as np
from safetensors.numpy import save

from tests.web.veil_vectors import DIRECTIONS, LENGTHS, N_ITEMS, READING, made
from veilrec.client.local_training import Cohort, examples_if_asked
from veilrec.client.veil import (
    CLIPS,
    FURTHER,
    MAP,
    PASSES,
    PLACES,
    POPULARITY,
    VOTES,
    WEIGHTS,
    OwnHistory,
    Steps,
    VeilLocalTrainer,
)
from veilrec.core.csr import Csr
from veilrec.core.schema import RoundSpec, Schema, Tensor, whole_model
from veilrec.data.population import Strings
from veilrec.federation import identity
from veilrec.federation.federation import joined
from veilrec.federation.identity import Invitation
from veilrec.federation.page import ABOUT, CONTENT, FORMAT
from veilrec.privacy.accounting.accountant import Rounds
from veilrec.privacy.mechanisms.schedules import ScheduledSum
from veilrec.privacy.randomness import SeededSource
from veilrec.wire import messages, rounds

ID = "0123456789abcdef0123456789abcdef"
SIGMA, SIGMA_OF_VOTES = 4.0, 8.0
BOUND_OF = {(WEIGHTS,): 1.0, (WEIGHTS, MAP): 0.25, (PLACES,): 0.5, (FURTHER,): 0.4}  # of a round about these tensors
SEED, CLIENT = 4_611_686_018_427_387_905, 3  # more than a double holds
SHARES = {WEIGHTS: 0.1, MAP: 0.9, PLACES: 1.0, FURTHER: 1.0}
UNITS = {WEIGHTS: 0.37, MAP: 0.011, PLACES: 2.5, FURTHER: 3.5}
NOISE = {PLACES: 3.0, FURTHER: 4.0}
WITH_MAP = ((WEIGHTS,), (WEIGHTS, MAP))  # which tensors each round is about
WITH_PLACES = ((PLACES,), *WITH_MAP)
WITH_BOTH = ((PLACES,), (FURTHER,), *WITH_MAP)
WITHOUT_MAP = ((WEIGHTS,), (WEIGHTS,))


def _schema(trainer):
    width = trainer.content.basis.shape[1] + DIRECTIONS * sum(name in PASSES for name in trainer.names)
    shapes = {WEIGHTS: (len(trainer.whitening),), MAP: (READING.tastes(width), width)}
    shapes |= dict.fromkeys(PASSES, (N_ITEMS, DIRECTIONS))
    rows = (Tensor(name, (N_ITEMS, size), by_row=True, learnt=False) for name, size in ((VOTES, 1), (POPULARITY, 2)))
    return Schema((*rows, *(Tensor(name, shapes[name], by_row=False) for name in trainer.names)))


def _about(schema, trainer, bounds, kinds):
    """As `federate.page.about` says it, of a federation that nobody runs; noise of exactly one bound and one vote."""
    fields = {"format": FORMAT, "id": ID, "address": "https://127.0.0.1:8471", "plan": "0" * 64, "method": "veil"}
    fields |= {"dataset": "made-up", "rounds": len(bounds), "clients": 5, "guarantee": {}, "largest_content": 1 << 20}
    keys = ("name", "shape", "by_row", "learnt")
    fields["tensors"] = [{key: getattr(tensor, key) for key in keys} for tensor in schema.tensors]
    fields["reading"] = asdict(trainer.reading)
    for name, values in (("units", UNITS), ("shares", SHARES), ("clips", CLIPS)):
        fields[name] = {each: values[each] for each in trainer.names}
    fields |= {"noise": dict(trainer.steps.noise), "unit": "user", "adjacency": "add-remove", "delta": 1e-6}
    fields["asked"] = [[name for name in trainer.names if name in kind] for kind in kinds]
    fields |= {"bounds": list(bounds), "sigma": SIGMA, "sigma_of_votes": SIGMA_OF_VOTES}
    fields |= {"mu_of_report": 1.0 / SIGMA_OF_VOTES, "mu_of_rounds": [bound / SIGMA for bound in bounds]}
    return fields | {"secure_sums": None}


def _file(about, trainer):
    ids = Strings.of(f"i{number}" for number in range(N_ITEMS))
    arrays = {**trainer.content.arrays(CONTENT), "whitening": trainer.whitening}
    arrays |= {"ids.offsets": ids.offsets, "ids.data": ids.data}
    told = {name: value for name, value in about.items() if name != "address"}
    acted = save(arrays, {ABOUT: json.dumps(told)})
    agreed = {name: about[name] for name in ("id", "rounds", "clients", "plan")}
    agreed |= {"secagg": "none", "least": 2, "helpers": [], "page": hashlib.sha256(acted).hexdigest()}
    whole = joined(json.dumps(agreed).encode(), joined(about["address"].encode(), acted))
    return base64.b64encode(whole).decode()


def _model(schema, popularity, size, generator):
    """Numbers that mean nothing; sums of places grow with the votes of their items, as real ones do."""
    model = {POPULARITY: popularity, VOTES: np.ones((N_ITEMS, 1), np.float32)}
    model |= {t.name: (size * generator.standard_normal(t.shape)).astype(np.float32) for t in schema.learnt.tensors}
    for name in model.keys() & set(PASSES):
        model[name] = (model[name] * (1.0 + np.exp(popularity[:, :1]))).astype(np.float32)
    return model


def _case(name, seed, kinds, *, size):
    names = tuple(dict.fromkeys(tensor for kind in kinds for tensor in kind))
    ranker, learnt = made(20 + seed, plain=MAP in names, directions=0, caution=0.0)
    steps = Steps(units=UNITS, shares=SHARES, noise={each: NOISE[each] for each in PASSES if each in names})
    reading = replace(READING, place_passes=max(1, sum(each in names for each in PASSES)))
    trainer = VeilLocalTrainer(ranker.content, reading, ranker.whitening, steps, names)
    schema, bounds = _schema(trainer), tuple(BOUND_OF[kind] for kind in kinds)
    people = Rounds(rounds=len(kinds), sampling="poisson", population=5, cohort=5)
    sums = ScheduledSum(schema=schema.learnt, clip_norms=bounds, noise_multiplier=4.0, taking_part=people, delta=1e-6)
    generator = np.random.default_rng([93, seed])
    model = _model(schema, learnt.told.popularity, size, generator)
    about = _about(schema, trainer, bounds, kinds)
    contents, told = [], []
    for number, asked in enumerate(kinds):
        round_ = RoundSpec(number, clip_norm=bounds[number], tensors=asked)
        later = [each for each in PASSES if each in names[number:]]  # nothing of it was released yet
        unknown = dict.fromkeys(later, np.zeros((N_ITEMS, DIRECTIONS), np.float32))
        content = rounds.encode(round_, whole_model(schema, {**model, **unknown}, number), schema)
        contents.append(base64.b64encode(content).decode())
        for length in LENGTHS:
            history = generator.permutation(N_ITEMS)[:length].astype(np.int32)
            data = OwnHistory(Csr(np.array([0, length]), history))
            cohort = Cohort(np.array([CLIENT]), data, {}, SEED)
            seen, come = rounds.decode(content, schema, number)
            weights = {name: table.values for name, table in come.tables.items()}
            weights |= {name: values[0] for name, values in come.dense.items()}
            updates = trainer.learn(cohort, weights, seen).updates
            sent = sums.message(examples_if_asked(updates, tell_examples=False), seen, SeededSource(1)).value
            view = seen.view(schema)  # as a client does it
            message = messages.encode_update(sent, view)
            parts = messages.decode_update(message, view, number).dense
            rounded = {name: np.round(values.astype(np.float64).ravel(), 9) for name, values in parts.items()}
            report = messages.encode_report(np.isin(np.arange(N_ITEMS), history), number).hex()
            one = {"number": number, "history": history.tolist(), "bytes": len(message), "report": report}
            told.append(one | {"parts": [[asked.index(name), values.tolist()] for name, values in rounded.items()]})
    return {"name": name, "file": _file(about, trainer), "bounds": list(bounds), "contents": contents, "told": told}


def _signed():
    invitation = Invitation.read(f"d00003:{bytes(range(32)).hex()}:{bytes(32).hex()}", "the vectors")
    content = b"what a client says"
    statement = identity.statement(ID, invitation.client, "round", 7, content)
    signature = identity.sign(invitation.key, ID, invitation.client, "round", 7, content).hex()
    made = {"content": base64.b64encode(content).decode(), "statement": statement.decode(), "signature": signature}
    return {"invitation": invitation.text(), "client": invitation.client, **made}


def trainer():
    """With content and a map, from a model far off and from one near 0; with places of items, which sums tell much or
    hardly anything of, in one pass and in two; and a catalogue of which nothing is known.
    """
    cases = [
        _case("everything", 0, WITH_MAP, size=1.0),
        _case("a small model", 1, WITH_MAP, size=0.01),
        _case("no content", 2, WITHOUT_MAP, size=1.0),
        _case("places", 3, WITH_PLACES, size=1.0),
        _case("places that nothing is known of", 4, WITH_PLACES, size=0.01),
        _case("two passes", 5, WITH_BOTH, size=1.0),
        _case("a second pass that nothing is known of", 6, WITH_BOTH, size=0.01),
    ]
    return {"seed": str(SEED), "client": CLIENT, "cases": cases, "signed": _signed()}
