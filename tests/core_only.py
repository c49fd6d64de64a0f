"""What has to run where only the core is installed. As a script: `core_only.py RESULTS.npz [--hide]`.

Every function below is one check and returns what it computed, so that a test can compare it with what compiled
kernels give. `--hide` makes the extras look as if they were not installed, where they are.
"""

import importlib
import pkgutil
import sys
import tempfile
from importlib.abc import MetaPathFinder
from pathlib import Path

import numpy as np

EXTRAS = ("torch", "numba", "llvmlite", "polars", "matplotlib", "PIL")
EXTRAS += ("dp_accounting", "starlette", "uvicorn", "msgspec")
PACKAGES = ("wire", "privacy", "server")  # every module of these, but for
NOT_CORE = "veilrec.serving"  # which the extra `serve` is for
MODULES = """client.recommender client.federated client.reptile client.mf client.rankers models.scores core.plan
methods.privrec.dp_privrec methods.privrec.baselines methods.priv_fedmf_sub.fedmf runs.release_model runs.saved
cli.main cli.recommend"""
N_ITEMS, DIM, SEED, ROUND = 40, 8, 11, 3


class _Hidden(MetaPathFinder):
    def __init__(self, extras):
        self.extras = extras

    def find_spec(self, fullname, path, target=None):
        if fullname.partition(".")[0] in self.extras:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def hide(*extras):
    """Make these, or all, look as if they were not installed."""
    sys.meta_path.insert(0, _Hidden(extras or EXTRAS))


def imports():
    """Everything that a client, a server or a reader of messages imports."""
    names = [f"veilrec.{name}" for name in MODULES.split()]
    for name_ in PACKAGES:
        package = importlib.import_module(f"veilrec.{name_}")
        found = (module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))
        names += [name for name in found if not name.startswith(NOT_CORE)]
    for name in names:
        importlib.import_module(name)
    loaded = [extra for extra in EXTRAS if extra in sys.modules]
    return {"modules": np.array(sorted(names)), "extras": np.array(loaded, str)}


def draws():
    """Keyed words of 64 bits, and what is made of them."""
    from veilrec.core import rng

    keys = [(0, 1, 0, 0), (7, 3, 2, 1), (2**31, 9, 10**6, 2**40), (2**63 - 1, 1, 1, 1), (-1, 2, 0, 5)]
    starts = [rng.stream(*key) for key in keys]
    words = [rng.word(np.uint64(start), counter) for start in starts for counter in (0, 1, 2**32)]
    below = [rng.below(np.uint64(word), bound) for word in words for bound in (1, 7, 1_682, 2**31)]
    return {
        "streams": np.array(starts, np.uint64),
        "words": np.array(words, np.uint64),
        "below": np.array(below, np.int64),
        "uniforms": rng.uniforms(SEED, rng.COHORT, ROUND, np.arange(30), 5),
        "normals": rng.normals(SEED, rng.MODEL, ROUND, np.arange(30), 5),
    }


def learn():
    """A user's device learns matrix factorisation: example by example, in batches, and on its own items at once."""
    from veilrec.client import mf
    from veilrec.client.local_training import Cohort, OwnItems
    from veilrec.core.csr import Csr
    from veilrec.core.schema import RoundSpec

    results = {}
    own, client = np.array([3, 17, 5, 39, 8, 21, 0, 30, 12], np.int32), np.array([6])
    for name, how in {"each": {}, "batch": {"batch": 7}, "full": {"batch": 0, "negatives": 0}}.items():
        trainer = mf.MfLocalTrainer(mf.MfSettings(dim=DIM, **how))
        data, private = OwnItems(Csr(np.array([0, len(own)]), own)), trainer.fresh_private_state(client, SEED)
        cohort = Cohort(client, data, private, SEED)
        learned = trainer.learn(cohort, mf.start_weights(N_ITEMS, DIM, 0.1, SEED), RoundSpec(ROUND))
        rows = learned.updates.tables[mf.ITEMS]
        results |= {f"{name}.index": rows.index, f"{name}.values": rows.values, f"{name}.loss": learned.loss}
        results[f"{name}.user"] = cohort.private[mf.USER]
    return results


def adapt():
    """A user's device adapts a feature network, with every loss, and ranks with what came of it."""
    from veilrec.client.reptile import Adapter, MetaSettings
    from veilrec.core.csr import Csr
    from veilrec.core.features import Feature, assembled
    from veilrec.models.feature_net import POPULARITY, Inputs

    group, kind, mark = Feature("group", "category", ("a", "b")), Feature("kind", "category", tuple("uvwx")), "mark"
    people = assembled([group], 1, [(np.zeros(1, np.int64), np.ones(1, np.int32))], [])
    kinds = np.arange(N_ITEMS), (np.arange(N_ITEMS) % 5).astype(np.int32)
    marks = np.linspace(0.0, 1.0, N_ITEMS, dtype=np.float32)
    items = assembled([kind, Feature(mark, "number")], N_ITEMS, [kinds], [marks])
    own = Csr(np.array([0, 9]), np.array([0, 3, 5, 8, 12, 17, 21, 30, 39], np.int32))
    votes = {POPULARITY: np.arange(-3.0, N_ITEMS - 3.0, dtype=np.float32).reshape(-1, 1)}
    results = {}
    for loss, embedding, hidden in (("logistic", 3, (5, 4)), ("softmax", 0, ()), ("rating", 2, (4,))):
        inputs = Inputs(people.take(np.zeros(0, np.int64)), items, embedding, True)
        how = MetaSettings(loss=loss, steps=3, negatives=6, proximal=0.1, needed=5.0)
        adapter = Adapter(inputs.net(hidden), inputs, how)
        start, read = adapter.net.flat(adapter.net.start(SEED, spread=0.5)), inputs.of_items(votes)
        learnt, lost = adapter.adapt(start, read, own, people, clients=np.array([6]), seed=SEED, round_number=ROUND)
        results |= {f"{loss}.weights": learnt, f"{loss}.loss": lost}
        results[f"{loss}.scores"] = adapter.score(learnt, read, people)
    return results


def protect():
    """Clipping and noise on the lattice; seeded, so that it can be compared."""
    from veilrec.privacy import samplers
    from veilrec.privacy.mechanisms.clipping import clip_clients
    from veilrec.privacy.randomness import SeededSource

    values = np.random.default_rng(SEED).standard_normal((12, DIM)).astype(np.float32)
    norms = clip_clients([(np.array([0, 5, 5, 12]), values)], (), 2.0)
    kinds = samplers.lattice_gaussian, samplers.lattice_laplace
    gaussian, laplace = (draw(SeededSource(SEED), 4_000) for draw in kinds)
    return {"gaussian": gaussian, "laplace": laplace, "norms": norms, "clipped": values}


def take_part():
    """A client answers a broadcast, and a server reads the answer and steps."""
    from veilrec.client.federated import FederatedClient
    from veilrec.client.local_training import OwnItems
    from veilrec.client.mf import ITEMS, MfLocalTrainer, MfSettings, schema, start_weights
    from veilrec.core.csr import Csr
    from veilrec.core.plan import Plan
    from veilrec.core.schema import RoundSpec, whole_model
    from veilrec.privacy.budget import Budget
    from veilrec.privacy.mechanisms.sums import NoNoise
    from veilrec.server.aggregation import ServerRate
    from veilrec.server.round_specs import CohortSettings
    from veilrec.server.server import Server
    from veilrec.wire import messages, rounds

    shape, weights = schema(N_ITEMS, DIM), start_weights(N_ITEMS, DIM, 0.1, SEED)
    whole = {"rounds": 1, "cohort": CohortSettings(), "aggregation": "sum", "server": ServerRate(), "ranker": None}
    parts = {"trainer": MfLocalTrainer(MfSettings(dim=DIM)), "mechanism": NoNoise(shape)}
    plan = Plan(schema=shape, start=weights, **parts, **whole)
    own = OwnItems(Csr(np.array([0, 3]), np.array([3, 17, 5], np.int32)))
    budget = Budget(unit="user", adjacency="replace-one", epsilon=1.0, delta=1e-6)
    broadcast = rounds.encode(RoundSpec(0), whole_model(shape, weights, 0), shape)
    how = {"number": 6, "draws_seed": SEED, "unprotected": True}
    with (
        tempfile.TemporaryDirectory() as folder,
        FederatedClient.create(Path(folder), plan, own, [budget], **how) as client,
    ):
        message = client.take_part(broadcast, 0)
    server = Server(plan)
    server.receive(message)
    server.step()
    answer = messages.decode_update(message, shape, 0).tables[ITEMS]
    return {"sent.index": answer.index, "sent.values": answer.values, "stepped": server.weights[ITEMS]}


def code():
    """Messages with fewer digits, as the other side reads them."""
    from veilrec.wire import messages

    rows = np.random.default_rng(SEED).standard_normal((50, DIM)).astype(np.float32)
    return {coding: messages.rounded_values(rows, coding) for coding in messages.CODINGS}


def charge():
    """A ledger on disk gives out messages until its budget is gone."""
    from veilrec.privacy.budget import Budget
    from veilrec.privacy.ledger import Ledger
    from veilrec.privacy.mechanisms.responses import RandomisedResponse
    from veilrec.privacy.randomness import SecureSource

    mechanism, bits = RandomisedResponse(length=5, epsilon=1.0, change="swap"), np.arange(5) == 2
    with tempfile.TemporaryDirectory() as folder:
        budget = Budget(unit=mechanism.unit, adjacency=mechanism.adjacency, epsilon=2.5, delta=1e-6)
        ledger = Ledger.create(Path(folder) / "ledger", [budget], minimum_period_seconds=60.0)
        options = {"encode": lambda told: told.tobytes(), "otherwise": b""}
        source = SecureSource()
        answers = [ledger.message(mechanism, bits, source, model_version=version, **options) for version in "abc"]
        spent = ledger.report()[0].spent.epsilon
        ledger.close()
    return {"personal": np.array([answer.personal for answer in answers]), "spent": np.array(spent)}


def rank():
    """Scores of items for a user, all and some."""
    from veilrec.models.scores import FactorScores

    generator = np.random.default_rng(SEED)
    users, items = (generator.standard_normal((n, DIM)).astype(np.float32) for n in (3, N_ITEMS))
    factors, asked = FactorScores(users, items), np.array([2, 0])
    chosen = np.array([[1, 5, 39], [0, 7, 8]], np.int32)
    return {"all": factors.score_all(asked), "some": factors.score_some(asked, chosen)}


CHECKS = (imports, draws, learn, adapt, protect, take_part, code, charge, rank)


def main(out, *options):
    """Run every check and save what it gave."""
    if "--hide" in options:
        hide()
    np.savez(out, **{f"{check.__name__}.{name}": value for check in CHECKS for name, value in check().items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
