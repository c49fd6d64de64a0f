"""Test vectors for both languages, made by the Python implementation: `python -m tests.web.make_vectors` writes them.

What is random comes from fixed seeds, so that the files are the same every time.
"""

import base64
import hashlib
import json
import math
from datetime import datetime
from fractions import Fraction
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.numpy import save
from scipy.stats import chi2, laplace, norm

from tests.serving import toys
from tests.web.masks_vectors import masks
from tests.web.trainer_vectors import trainer
from tests.web.veil_vectors import veil
from veilrec.client.released import UserEncoder
from veilrec.privacy.accounting.gaussian import delta_gaussian
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.attention import PrivateAttention, decompose
from veilrec.privacy.mechanisms.base import lattice_delta
from veilrec.privacy.mechanisms.interests import InterestResponse, PooledInterest
from veilrec.privacy.mechanisms.responses import KaryResponse
from veilrec.privacy.randomness import SeededSource
from veilrec.privacy.samplers import (
    _GAUSSIAN_WHOLE,
    _LAPLACE_WHOLE,
    UNITS,
    _exp_minus,
    lattice_gaussian,
    lattice_laplace,
)
from veilrec.wire.queries import KINDS, PoolInfo, QueryShape, encode, pool_file
from veilrec.wire.releases import canonical
from veilrec.wire.signing import RELEASE, REVOCATION, ROTATION, Revocation, Rotation, SigningKey, encoded

FOLDER = Path(__file__).parent / "vectors"
DRAWS = 20_000  # of the tests of distributions
FALSE_ALARM = 1e-6  # their rate
_DRAW = {"gaussian": lattice_gaussian, "laplace": lattice_laplace}
_WORD = 2**64


class Scripted:
    """The words given, then those of a seed; remembers all that were taken."""

    protects = False

    def __init__(self, words, seed):
        self._first, self._then, self.taken = list(words), SeededSource(14, seed), []

    def words(self, count):
        self._first, own = self._first[count:], self._first[:count]
        more = self._then.words(count - len(own)).tolist() if len(own) < count else []
        self.taken += [*own, *more]
        return np.array([*own, *more], np.uint64)

    def text(self):
        return text(np.array(self.taken, "<u8").tobytes())


def text(content):
    """Bytes in JSON."""
    return base64.b64encode(content).decode()


def key_of(*seed):
    """The AES key whose stream `SeededSource(*seed)` reads, so that the browser can read the same one."""
    words = np.random.SeedSequence(list(seed)).generate_state(8, np.uint32)
    return words.astype("<u4").tobytes().hex()


def _undecided(exponent):
    """The word that begins e^-exponent: only the words after it decide."""
    return math.floor(_exp_minus(exponent, 128)[0] * _WORD)


def _starts():
    """Words that lead to every branch: far in the tail, on a threshold, and undecided to the last bit."""
    gaussian, whole = _GAUSSIAN_WHOLE.tolist(), _LAPLACE_WHOLE.tolist()
    half = 1 << 63  # as a word for the fraction: x = 1/2
    part = Fraction(1, 2)
    later = [_undecided(part * (2 * k + part) / 2) for k in range(6)]
    return {
        "gaussian": ("gaussian", []),
        "laplace": ("laplace", []),
        "gaussian far": ("gaussian", [_WORD - 1, half, 1, _WORD - 2**20, half | 1, 2]),
        "gaussian beyond 64 bits": ("gaussian", [_WORD - 1, 5, 0, _WORD - 1, 4, 1]),
        "gaussian on thresholds": ("gaussian", [word for k in range(6) for word in (gaussian[k], half + k, 7)]),
        "gaussian undecided": ("gaussian", [word for k, far in enumerate(later) for word in (gaussian[k], half, far)]),
        "laplace far": ("laplace", [_WORD - 1, 3, 5, _WORD - 1, 9, 9, 0, half, 0]),
        "laplace on thresholds": ("laplace", [word for k in range(4) for word in (whole[k], half + 2 * k, 7)]),
        "laplace undecided": ("laplace", [word for k in range(4) for word in (whole[k], half, _undecided(part))]),
    }


def samplers():
    """The same words, the same integers."""
    cases = []
    for seed, (name, (law, start)) in enumerate(_starts().items()):
        source = Scripted(start, seed)
        draws = _DRAW[law](source, 40)
        cases.append({"name": name, "law": law, "words": source.text(), "draws": draws.tolist()})
    return {"units": UNITS, "cases": cases, "bulk": [_bulk("gaussian", 21), _bulk("laplace", 22)]}


def _bulk(law, seed):
    """Many draws of a stream: their digest, and what chance each bin of the law has."""
    draws = _DRAW[law](SeededSource(seed), DRAWS)
    edges = np.array([-3, -2, -1.5, -1, -0.5, -0.1, 0, 0.1, 0.5, 1, 1.5, 2, 3]) * UNITS
    ideal = norm if law == "gaussian" else laplace
    chances = np.diff(ideal.cdf(np.concatenate(([-np.inf], (edges - 0.5) / UNITS, [np.inf]))))
    digest = hashlib.sha256("\n".join(map(str, draws.tolist())).encode()).hexdigest()
    found = {"law": law, "key": key_of(seed), "count": DRAWS, "digest": digest, "edges": edges.tolist()}
    return found | {"chances": chances.tolist(), "most": _critical(len(chances) - 1), "false_alarm": FALSE_ALARM}


def _critical(degrees):
    return float(chi2.isf(FALSE_ALARM, degrees))


def responses():
    """k-ary response: one by one, and many of a stream."""
    cases = []
    for seed, (truth, count, epsilon) in enumerate([(0, 5, 1.0), (3, 5, 1.0), (1, 2, 0.1), (7, 8, 5.0), (2, 3, 40.0)]):
        for number in range(6):
            source = Scripted([0] if number == 0 else [], 100 * seed + number)  # the first one is a lie
            mechanism = KaryResponse(categories=count, epsilon=epsilon, unit="history")
            told = mechanism.release(np.array(truth), source).value
            case = {"truth": truth, "categories": count, "epsilon": epsilon, "words": source.text(), "told": int(told)}
            cases.append(case)
    mechanism = KaryResponse(categories=5, epsilon=1.0, unit="history")
    stream = SeededSource(31)
    told_many = [int(mechanism.release(np.array(2), stream).value) for _ in range(DRAWS)]
    counts = np.bincount(told_many, minlength=5).tolist()
    chances = [mechanism.other_probability] * 5
    chances[2] = mechanism.keep_probability
    bulk = {"key": key_of(31), "truth": 2, "categories": 5, "epsilon": 1.0, "count": DRAWS, "counts": counts}
    return {"cases": cases, "bulk": bulk | {"chances": chances, "most": _critical(4), "false_alarm": FALSE_ALARM}}


def attention():
    """Noisy attention and interests: from attention to the bytes of a query."""
    generator = np.random.default_rng(41)
    cases = []
    for seed in range(8):
        noise = "laplace" if seed % 2 == 0 else "gaussian"
        size = 5 if seed < 6 else 3
        alpha = generator.dirichlet(np.full(size, 0.4))
        clip, delta = (1.0, 0.4)[seed % 3 == 1], 0.0 if noise == "laplace" else 1e-6
        mechanism = PrivateAttention(basis=size, clip_norm=clip, epsilon=5.0, delta=delta, noise=noise)
        source = Scripted([], 200 + seed)
        told = mechanism.release(alpha, source).value
        bytes_ = encode(told.astype(np.float32), QueryShape("attention", size))
        claim = {"epsilon": 5.0, "delta": delta, "unit": "history", "adjacency": "replace-one"}
        offer = {"mode": "attention", "kind": "attention", "size": size, "noise": noise, "clip": clip, **claim}
        offer["scale"] = mechanism.noise.scale
        clipped = mechanism.noise.clipped(alpha).tolist()
        case = {"alpha": alpha.tolist(), "offer": offer, "clipped": clipped, "words": source.text()}
        cases.append(case | {"told": told.tolist(), "query": bytes_.hex()})
    for seed in range(4):
        alpha = generator.dirichlet(np.full(5, 0.4))
        source = Scripted([], 250 + seed)
        told = InterestResponse(basis=5, epsilon=1.0).release(alpha, source).value.reshape(1)
        claim = {"epsilon": 1.0, "delta": 0.0, "unit": "history", "adjacency": "replace-one"}
        offer = {"mode": "interest", "kind": "interest", "size": 5, "how": "attention", **claim}
        query = encode(told.astype(np.float32), QueryShape("interest", 5)).hex()
        cases.append({"alpha": alpha.tolist(), "offer": offer, "words": source.text(), "query": query})
    return {"cases": cases}


def pooled():
    """A noisy sum of clicks: from clicks to the bytes of a query."""
    generator = np.random.default_rng(51)
    dim, size, slots, clip = 12, 4, 10, 1.3
    centre = generator.normal(size=dim)
    axes = np.linalg.qr(generator.normal(size=(dim, size)))[0]
    mechanism = PooledInterest(projection=np.eye(size), clip_norm=clip, slots=slots, epsilon=5.0, delta=1e-6)
    claim = {"epsilon": 5.0, "delta": 1e-6, "unit": "click", "adjacency": "replace-one"}
    offer = {"mode": "pooled", "kind": "pooled", "size": size, "clip": clip, "slots": slots, "sigma": mechanism.sigma}
    serving = save({"pooled.centre": centre, "pooled.axes": np.ascontiguousarray(axes)})
    cases = []
    for seed, count in enumerate((0, 1, 3, 10, 25)):
        clicks = generator.normal(size=(count, dim))
        source = Scripted([], 300 + seed)
        recent = (clicks[-slots:] - centre) @ axes
        told = mechanism.release(recent, source).value
        query = encode(told.astype(np.float32), QueryShape("pooled", size)).hex()
        exact = mechanism.pooled(recent).tolist()
        cases.append({"clicks": clicks.tolist(), "pooled": exact, "words": source.text(), "query": query})
    return {"offer": offer | claim, "serving": text(serving), "cases": cases}


def queries():
    """The bytes of queries of every kind."""
    generator = np.random.default_rng(61)
    cases = []
    for kind in KINDS:
        for size in (1, 5, 182):
            values = np.array([size - 1.0]) if kind == "interest" else generator.normal(size=size) * 10.0 ** (size % 7)
            query = encode(values.astype(np.float32), QueryShape(kind, size)).hex()
            cases.append({"kind": kind, "size": size, "values": values.tolist(), "query": query})
    odd = [("interest", 5, values) for values in ([5], [-1], [0.5], [1, 2])]
    odd += [("attention", 5, [1, 2, 3, 4]), ("attention", 1, [1e39]), ("attention", 0, []), ("vector", 65536, [])]
    return {"cases": cases, "refused": [{"kind": kind, "size": size, "values": values} for kind, size, values in odd]}


def guarantees():
    """Lines in full, the privacy of Gaussian noise, and offers that keep their word or do not."""
    stated = [
        Guarantee("proven", "history", "replace-one", 1.0, 0.0, "per message", "nobody"),
        Guarantee("proven", "click", "replace-one", 5.0, 1e-6, "per message", "nobody"),
        Guarantee("proven", "user", "add-remove", 0.123456789, 1e-5, "whole run", "server"),
        Guarantee("proven", "user", "add-remove", 1234567.0, 0.0001, "lifetime", "server sees only sums"),
        Guarantee(
            "as published", "click", "replace-one", 10.0, 1e-3, "per message", "nobody", (), 22.123456, 1e-3, "x"
        ),
        Guarantee("as published", "click", "replace-one", 10.0, 1e-3, "per message", "nobody"),
        Guarantee("none"),
    ]
    lines = [{"guarantee": each.to_json(), "line": each.line()} for each in stated]
    points = [(e, m) for e in (0.0, 0.1, 1.0, 3.0, 5.0, 10.0) for m in (0.05, 0.3, 1.0, 2.0, 4.0)]
    deltas = [{"epsilon": e, "mu": m, "delta": delta_gaussian(e, m)} for e, m in points]
    event = PooledInterest(projection=np.eye(16), clip_norm=1.3, slots=50, epsilon=5.0, delta=1e-6).event()
    whole = {"mu": event.mu, "dimension": 16}
    lattice = [{"epsilon": e, **whole, "delta": lattice_delta(event, e, 16)} for e in (1.0, 5.0, 6.0)]
    return {"lines": lines, "deltas": deltas, "lattice": lattice}


def _programs():
    history = {"op": "history"}
    mixed = {"op": "self-attention", "weights": "clicks.mix", "heads": 2, "of": history}
    attend = {"op": "attend", "weights": "clicks.attention", "of": mixed}
    recent = {"op": "latest", "count": 3, "of": history}

    def attends(prefix):
        return {f"{prefix}.hidden.weight": (5, 8), f"{prefix}.hidden.bias": (5,), f"{prefix}.query.weight": (1, 5)}

    def gru(prefix, size):
        shapes = {"inputs.weight": (3 * size, 8), "inputs.bias": (3 * size,)}
        shapes |= {"recurrent.weight": (3 * size, size), "recurrent.bias": (3 * size,)}
        return {f"{prefix}.{name}": shape for name, shape in shapes.items()}

    mix = {"clicks.mix.projections.weight": (24, 8)} | attends("clicks.attention")
    short, long_term = (
        {"op": "gru", "weights": "short", "of": recent},
        {"op": "attend", "weights": "long", "of": history},
    )
    narrow = {"op": "linear", "weights": "narrow", "of": long_term}
    joined = {"op": "attend", "weights": "join", "of": {"op": "stack", "of": [attend, short]}}
    narrowed = {"narrow.weight": (4, 8), "narrow.bias": (4,)}
    return [
        ("self-attention", attend, mix),
        ("scaled", {"op": "scale", "weights": "scale", "of": long_term}, attends("long") | {"scale": (1,)}),
        ("gru", {"op": "gru", "weights": "short", "of": history}, gru("short", 8)),
        ("gru with a start", {**short, "start": long_term}, gru("short", 8) | attends("long")),
        ("two joined", {"op": "concat", "of": [narrow, short]}, gru("short", 4) | attends("long") | narrowed),
        ("two stacked", joined, mix | attends("join") | gru("short", 8)),
        ("public head", {"op": "public-head", "parts": [3, 2, 1]}, {"scales": (3,), "taste": (2,)}),
    ]


def encoders():
    """Users and attention of histories of many lengths, by every layer that there is."""
    cases = []
    for seed, (name, user, shapes) in enumerate(_programs()):
        generator = np.random.default_rng([71, seed])
        weights = {key: generator.normal(size=shape).astype(np.float32) for key, shape in sorted(shapes.items())}
        weights["newcomer"] = generator.normal(size=8).astype(np.float32)
        weights["basis"] = generator.normal(size=(3, 8))
        empty = None if name == "public head" else "newcomer"
        whole = {"attention": True, "ranks_with": "whole"}
        program = {"user": user, "empty": empty, "dim": 8, "longest": 6, **whole}
        encoder = UserEncoder(program, weights)
        histories = []
        for length in (0, 1, 2, 5, 6, 9):
            clicks = generator.normal(size=(length, 8))
            found = encoder.user(clicks)
            alpha = decompose(found, weights["basis"]).tolist()
            histories.append({"clicks": clicks.tolist(), "user": found.tolist(), "alpha": alpha})
        cases.append({"name": name, "program": program, "weights": text(save(weights)), "histories": histories})
    return {"cases": cases, "malformed": _malformed_programs(cases[0]["program"])}


def _malformed_programs(right):
    """Programs of the first case's weights that do not run."""
    history, user = {"op": "history"}, right["user"]
    odd = [{"dim": 7}, {"dim": "8"}, {"dim": 2**53}, {"longest": 0}, {"longest": -5}, {"longest": None}, {"user": None}]
    odd += [{"empty": 3}, {"empty": "nothing"}, {"user": history}, {"user": {"op": "attend", "of": history}}]
    odd += [{"user": user | {"weights": 5}}, {"user": user | {"of": "history"}}, {"user": user | {"of": [history]}}]
    odd += [
        {"user": {"op": "latest", "count": 1}},
        {"user": {"op": "gru", "of": history}},
        {"user": {"op": "public-head"}},
    ]
    odd += [{"user": {"op": "public-head", "parts": "x"}}, {"user": {"op": "concat", "of": user}}]
    odd += [{"user": user | {"of": user["of"] | {"heads": heads}}} for heads in (0, "x", 10**9)]
    return [{"name": f"malformed {each}"[:80], "program": right | each} for each in odd]


def pools():
    """A pool, what is in it, its order for somebody, and files that are none."""
    generator = np.random.default_rng(81)
    ids = [f"N{number}" for number in range(12)]
    titles = [f"Tïtle \u2013 {number}" for number in range(12)]
    categories = [("sport", "", "money")[number % 3] for number in range(12)]
    vectors = generator.normal(size=(12, 6)).astype(np.float32)
    interests = generator.normal(size=(4, 6)).astype(np.float32)
    about = PoolInfo("synthetic 3", 10, whole=True, exact=False)
    content = pool_file(ids, titles, categories, vectors @ interests.T, vectors, about)
    user, alpha = generator.normal(size=6), generator.dirichlet(np.ones(4))
    steps = np.abs(vectors).max(axis=0) / 127.0
    kept = np.rint(vectors / steps.astype(np.float32)) * steps.astype(np.float32).astype(np.float64)
    header = int.from_bytes(content[:8], "little")
    longer = (header + 10**6).to_bytes(8, "little") + content[8:]
    broken = [content[:5], content[:-1], content + b"\0", longer, content[:8] + b"[" + content[9:], b""]
    by_alpha = (vectors @ interests.T).astype(np.float64) @ alpha
    numbers = {"vectors": kept, "user": user, "by_user": kept @ user, "alpha": alpha, "by_alpha": by_alpha}
    found = {"file": text(content), "ids": ids, "titles": titles, "categories": categories}
    found |= {name: values.tolist() for name, values in numbers.items()}
    return found | {"broken": [text(each) for each in broken]}


def secret(number):
    """A key of a test: everybody knows it."""
    return SigningKey(Ed25519PrivateKey.from_private_bytes(bytes([number] * 32)))


FILE = b"some weights"
NOW = 1_795_000_000  # after these releases were made


def manifest_of(version, **changed):
    """A manifest of one small file."""
    files = {"card.md": {"bytes": len(FILE), "sha256": hashlib.sha256(FILE).hexdigest()}}
    sizes = {"items": 3, "dim": 2, "interests": 0, "longest": 5}
    fields = toys.manifest_of(name="made-up", version=version, method="privaterec", sizes=sizes, files=files)
    return json.dumps(fields | changed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def signed(manifest, key, rotations=()):
    """An envelope as a server hands it out."""
    signature = encoded(key.sign(RELEASE, manifest.encode()))
    about = {"format": 1, "key": key.public.hex(), "signature": signature}
    return {"manifest": manifest, "signature": about, "keys": [rotation.to_json() for rotation in rotations]}


def _at(text):
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z").timestamp()


def _expiring(key):
    """A release of 80 days: 14 days before and after its last one there is a warning, then it is refused."""
    long = signed(manifest_of(3, created="2026-11-01T00:00:00Z", expires="2027-01-20T00:00:00Z"), key)
    short = signed(manifest_of(3, created="2026-11-01T00:00:00Z", expires="2026-11-05T00:00:00Z"), key)
    moments = [
        (long, "2027-01-05T23:59:59Z", True, False),
        (long, "2027-01-06T00:00:00Z", True, True),
        (long, "2027-02-02T23:59:59Z", True, True),
        (long, "2027-02-03T00:00:00Z", False, False),
        (short, "2026-11-03T23:59:59Z", True, False),
        (short, "2026-11-05T23:59:59Z", True, True),
        (short, "2026-11-06T00:00:00Z", False, False),
    ]
    return [
        (f"expiry {number}", what, {"key": None, "newest": {}}, good, _at(now), warned)
        for number, (what, now, good, warned) in enumerate(moments)
    ]


def _revoking():
    """Keys that were revoked, by whom it counts, and that it is remembered."""
    a, b, c, thief = (secret(number) for number in (1, 2, 3, 9))
    ab, ac, bc = Rotation.made(a, b.public), Rotation.made(a, c.public), Rotation.made(b, c.public)
    stolen, b_gone, c_gone = Rotation.made(a, thief.public), Revocation.made(c, b.public), Revocation.made(b, c.public)
    a_gone, by_thief = Revocation.made(b, a.public), Revocation.made(thief, c.public)
    forged = Revocation(c.public, b.public, thief.sign(REVOCATION, b.public + c.public))
    knows = {"key": a.public.hex(), "newest": {}}
    recalls = knows | {"revoked": [c_gone.to_json()]}
    rows = [
        ("by the other heir", c, [ab, ac, c_gone], knows, False),
        ("and the other heir signs", b, [ab, ac, c_gone], knows, True),
        ("whoever revokes first", b, [ab, ac, c_gone, b_gone], knows, True),
        ("by the key after it", c, [ab, bc, b_gone], knows, True),
        ("a stranger's word", c, [ac, by_thief], knows, True),
        ("forged", b, [ab, forged], knows, False),
        ("of a key whose thief hands over", thief, [stolen, ab, a_gone], knows, False),
        ("of a key that hands over to its revoker", b, [stolen, ab, a_gone], knows, True),
        ("remembered", c, [ab, ac], recalls, False),
        ("remembered, and the hand-over as well", thief, [ac, Rotation.made(c, thief.public)], recalls, False),
        ("remembered, of another key", b, [ab], recalls, True),
        ("itself, first use", c, [bc, Revocation.made(b, c.public)], {"key": b.public.hex(), "newest": {}}, False),
        ("too many", a, [Revocation.made(a, bytes([n] * 32)) for n in range(65)], knows, False),
    ]
    return [
        (f"revoked, {name}", signed(manifest_of(4), key, said), trust, good) for name, key, said, trust, good in rows
    ]


def _rewritten(key):
    """What says the same in other letters: of signatures, keys and manifests there is one way to write them."""
    trust, plain = {"key": None, "newest": {}}, signed(manifest_of(3), key)
    about, step = plain["signature"], Rotation.made(secret(8), key.public).to_json()
    raw = base64.b64decode(about["signature"])
    order = 2**252 + 27742317777372353535851937790883648493
    larger = raw[:32] + (int.from_bytes(raw[32:], "little") + order).to_bytes(32, "little")
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    other = about["signature"][:-3] + letters[letters.index(about["signature"][-3]) ^ 1] + "=="
    odd_signatures = [{"format": True}, {"format": 1.5}, {"format": "1"}, {"key": about["key"].upper()}, {"more": 1}]
    odd_signatures += [{"key": 7}, {"signature": other}, {"signature": text(larger)}, {"signature": None}]
    odd_signatures += [{"signature": about["signature"] + "\n"}, {"signature": about["signature"].rstrip("=")}]
    cases = [
        (f"rewritten signature {odd}"[:60], plain | {"signature": about | odd}, trust, False) for odd in odd_signatures
    ]
    odd_steps = ({"old": step["old"].upper()}, {"more": 1}, {"new": None}, {"signature": step["signature"] + "="})
    cases += [(f"rewritten rotation {odd}"[:60], plain | {"keys": [step | odd]}, trust, False) for odd in odd_steps]
    manifest = manifest_of(
        3, figures={"a": 1e-06, "b": 12345678901234567890.0, "c": 0.1, "d": -0.5, "\u00e9": "\u2028"}
    )
    cases.append(("numbers as Python writes them", signed(manifest, key), trust, True))
    swaps = [("1e-06", "0.000001"), ("1e-06", "1e-6"), ("1.2345678901234567e+19", "12345678901234567000")]
    swaps += [('"version":3', '"version":3.0'), ('"version":3', '"version":3e0'), ('"c":0.1', '"c":0.10')]
    swaps += [('"c":0.1', '"c":NaN'), ('"c":0.1', '"c":Infinity'), ('"c":0.1', '"c":1e999'), ('"c":0.1', '"c":-0')]
    swaps += [
        ('"version":3', '"version":3,"version":3'),
        ('"version":3', '"version": 3'),
        ('"c":0.1', '"c":0.1,"c":0.2'),
    ]
    swaps += [("{", "{ "), ("}}", "}}\n"), ('"c":', '"\\u0063":'), ("\u2028", "\\u2028"), ("\u2028", "\\ud800")]
    swaps += [('"d":-0.5', '"d":' + "[" * 80 + "]" * 80), ('"d":-0.5', '"d":12345678901234567890'), ("{", "[")]
    for old, new in swaps:
        wrong = manifest.replace(old, new, 1)
        cases.append((f"rewritten manifest {new}"[:60], signed(wrong, key), trust, False))
    return cases


def _malformed(key):
    """Signed manifests whose fields are not of their kind."""
    right = json.loads(manifest_of(3))
    entry, proven = (
        right["files"]["card.md"],
        Guarantee("proven", "user", "add-remove", 1.0, 1e-6, "whole run", "server"),
    )
    offer = {
        "mode": "interest",
        "kind": "interest",
        "size": 3,
        "epsilon": 1.0,
        "delta": 0.0,
        "guarantee": proven.to_json(),
    }
    sizes = right["sizes"]
    values = [None, True, -1, 1.5, "x\n", [1], {"a": 1}]
    free = {"encoder": (None, {"a": 1}), "figures": ({"a": 1},), "protected": (True,)}
    wrong = [{name: value} for name in right for value in values if value not in free.get(name, ())]
    wrong += [{"more": 1}, {"version": 2**53}, {"created": "2026-02-30T00:00:00Z"}, {"expires": "2026-11-17T06:40:00Z"}]
    wrong += [{"expires": "2026-1-1T0:0:0Z"}, {"expires": "2999-01-01"}, {"family": "News"}, {"name": "x" * 101}]
    wrong += [{"sizes": sizes | {name: value}} for name in sizes for value in (-1, 1.0, "1", None, 2**53)]
    wrong += [{"sizes": sizes | {"more": 1}}, {"sizes": {}}, {"data": {"a": 1}}, {"why_unprotected": ["a\u0007"]}]
    wrong += [
        {"files": {"card.md": entry | odd}} for odd in ({"bytes": -1}, {"bytes": 1.0}, {"bytes": 2**53}, {"more": 1})
    ]
    wrong += [{"files": {"card.md": entry | odd}} for odd in ({"sha256": "0" * 63}, {"sha256": 7}, {"tensors": {}})]
    paths = (
        "../x",
        "/etc/passwd",
        "model/../x",
        "model//x",
        "a/b",
        ".x",
        "model/.x",
        "x\\y",
        "",
        "x" * 81,
        "caf\u00e9",
    )
    paths += ("manifest.json", "manifest.sig", "keys.json", "model", "__proto__")
    wrong += [{"files": {path: entry if path != "model" else None}} for path in paths]
    wrong += [{"files": {"a.safetensors": entry}}, {"files": {f"f{n}": entry for n in range(65)}}]
    tensors = (
        {"a": 1},
        [],
        {"a": {"dtype": 1, "shape": []}},
        {"a": {"dtype": "F32", "shape": [-1]}},
        {"a": {"dtype": "F32"}},
    )
    wrong += [{"files": {"a.safetensors": entry | {"tensors": each}}} for each in tensors]
    odd_offers = [{"size": -1}, {"size": 1.0}, {"kind": "other"}, {"mode": 1}, {"epsilon": "1"}, {"epsilon": -1.0}]
    odd_offers += [{"pool": "x"}, {"noise": 1}, {"guarantee": 1}, {"clip": True}, {"slots": 0.5}, {"unit": ["click"]}]
    wrong += [{"offers": [offer | odd]} for odd in odd_offers] + [{"offers": [1]}, {"offers": [{}]}]
    told = proven.to_json()
    odd_words = [
        {"basis": "sure"},
        {"basis": None},
        {"epsilon": -1.0},
        {"epsilon": None},
        {"epsilon": True},
        {"delta": 1.0},
    ]
    odd_words += [{"unit": "person"}, {"caveats": "x"}, {"caveats": [1]}, {"caveats": None}, {"honest_epsilon": 1.0}]
    odd_words += [
        {"honest_note": 5},
        {"honest_note": "x"},
        {"basis": "none"},
        {"event": 1},
        {"event": []},
        {"trust": 1},
    ]
    wrong += [{"guarantee": told | odd} for odd in odd_words] + [{"guarantee": {}}]
    trust = {"key": None, "newest": {}}
    missing = [(f"without {name}", {key: right[key] for key in right if key != name}) for name in right]
    cases = [(str(odd), right | odd) for odd in wrong] + missing
    rows = [(f"malformed {name}"[:60], signed(canonical(fields).decode(), key), trust, False) for name, fields in cases]
    fine = signed(canonical(right | {"offers": [offer], "guarantee": told}).decode(), key)
    return [*rows, ("an offer and a guarantee", fine, trust, True)]


def releases():
    """Envelopes, what a client remembers, and whether it takes them."""
    first, second, third, stranger = (secret(number) for number in (1, 2, 3, 9))
    one, two = Rotation.made(first, second.public), Rotation.made(second, third.public)
    forged = Rotation(first.public, stranger.public, stranger.sign(ROTATION, first.public + stranger.public))
    plain = signed(manifest_of(3), first)
    digest = hashlib.sha256(manifest_of(3).encode()).hexdigest()
    knows = {"key": first.public.hex(), "newest": {}}
    seen = knows | {"newest": {"made-up": {"version": 3, "digest": digest}}}
    nothing = {"key": None, "newest": {}}
    altered = plain | {"manifest": plain["manifest"].replace('"items":3', '"items":4')}
    of_another = signed(manifest_of(4), first)["signature"]["signature"]
    swapped = plain | {"signature": plain["signature"] | {"signature": of_another}}
    for_rotation = encoded(first.sign(ROTATION, manifest_of(3).encode()))
    other_purpose = plain["signature"] | {"signature": for_rotation}
    claims = plain | {"signature": plain["signature"] | {"key": stranger.public.hex()}}
    leads_out = {"../x": json.loads(manifest_of(3))["files"]["card.md"]}
    cases = [
        ("valid, first use", plain, nothing, True),
        ("valid, known key", plain, knows, True),
        ("valid, the same again", plain, seen, True),
        ("valid, a newer version", signed(manifest_of(4), first), seen, True),
        ("altered manifest", altered, nothing, False),
        ("another signature", swapped, nothing, False),
        ("signed for another purpose", plain | {"signature": other_purpose}, nothing, False),
        ("claims another key", claims, nothing, False),
        ("a stranger's", signed(manifest_of(4), stranger), knows, False),
        ("rolled back", signed(manifest_of(2), first), seen, False),
        ("the same number, other contents", signed(manifest_of(3, method="nrms"), first), seen, False),
        ("rotated", signed(manifest_of(4), second, [one]), seen, True),
        ("rotated twice", signed(manifest_of(4), third, [one, two]), seen, True),
        ("rotated, first use", signed(manifest_of(4), third, [one, two]), nothing, True),
        ("rotated, but rolled back", signed(manifest_of(2), second, [one]), seen, False),
        ("a rotation is missing", signed(manifest_of(4), third, [two]), seen, False),
        ("a forged rotation", signed(manifest_of(4), stranger, [forged]), seen, False),
        ("a key that was given up", signed(manifest_of(4), first, [one]), seen, False),
        ("a newer client", signed(manifest_of(4, minimum_client=3), first), seen, False),
        ("another format", signed(manifest_of(4, format=2), first), seen, False),
        ("version 0", signed(manifest_of(0), first), nothing, False),
        ("a path that leads out", signed(manifest_of(4, files=leads_out), first), nothing, False),
    ]
    cases += _expiring(first) + _revoking() + _rewritten(first) + _malformed(first)
    rows = ((*case, NOW, False)[:6] if len(case) == 4 else case for case in cases)
    fields = ("name", "envelope", "trust", "good", "now", "warned")
    listed = [dict(zip(fields, row, strict=True)) for row in rows]
    return {"cases": listed, "file": {"path": "card.md", "content": text(FILE), "altered": text(b"some weightz")}}


OWN = (samplers, responses, attention, pooled, queries, guarantees, encoders, pools, releases)
ALL = {act.__name__: act for act in (*OWN, veil, trainer, masks)}


def content_of(name):
    return json.dumps(ALL[name](), ensure_ascii=True, separators=(",", ":")).replace("},{", "},\n{") + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in ALL:
        (FOLDER / f"{name}.json").write_text(content_of(name))
