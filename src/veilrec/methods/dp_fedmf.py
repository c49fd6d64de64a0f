"""DP-FedMF: federated matrix factorisation with differential privacy.

As published (the baseline of Xue et al. 2026, eq. 10): every uploaded row is clipped and gets Laplace noise on the
device. Proven: the whole update of a user is clipped, and the sum of a round gets Gaussian noise before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass

from veilrec.device.protection import NoisyMessage, Protection, WholeUpdateClip
from veilrec.methods.base import Method, Problem
from veilrec.methods.fedmf import FedMfConfig, make_simulation
from veilrec.privacy.accounting import Rounds, noise_multiplier_for
from veilrec.privacy.checks import positive, probability
from veilrec.privacy.guarantee import Adjacency, Guarantee
from veilrec.privacy.mechanism import Calibration
from veilrec.server.aggregate import Aggregation
from veilrec.server.optimise import ServerRate
from veilrec.simulate.cohort import CohortSettings
from veilrec.simulate.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """What is promised, and what is cut off to keep the promise."""

    epsilon: float = (
        8.0  # proven: of a user, over the whole run; as published: of one message, as the paper counts
    )
    delta: float = 1e-6
    clip_norm: float = 0.5  # proven: of a user's whole update of a round; as published: of each row

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon, clip_norm=self.clip_norm)
        probability(delta=self.delta)


class DpFedMfConfig(FedMfConfig):
    """Settings of DP-FedMF."""

    calibration: Calibration = "proven"
    privacy: PrivacySettings = PrivacySettings()
    cohort: CohortSettings = CohortSettings(size=100, sampling="poisson")
    aggregation: Aggregation = "sum"  # a divisor that counts devices would itself tell something
    server: ServerRate = ServerRate(rate=0.01)


def plan(config: DpFedMfConfig, problem: Problem) -> Rounds:
    """How often a user's data is used."""
    population = int((problem.train.lengths() > 0).sum())
    return Rounds(
        rounds=problem.rounds,
        sampling=config.cohort.sampling,
        population=population,
        cohort=config.cohort.size,
    )


def build(config: DpFedMfConfig, problem: Problem) -> Trainer:
    """Put the parts together; the noise is chosen before the first round."""
    privacy = config.privacy
    if config.calibration == "as-published":
        scale = (
            2.0 * privacy.clip_norm / privacy.epsilon
        )  # Laplace(sensitivity / epsilon), the L2 bound taken for L1
        return make_simulation(config, problem, NoisyMessage(clip_norm=privacy.clip_norm, scale=scale))
    rounds = plan(config, problem)
    sensitivity = privacy.clip_norm * (1.0 if rounds.adjacency == "add-remove" else 2.0)
    sigma = sensitivity * noise_multiplier_for(privacy.epsilon, privacy.delta, rounds)
    protection: Protection = WholeUpdateClip(clip_norm=privacy.clip_norm)
    return make_simulation(config, problem, protection, sigma=sigma)


def guarantee(config: DpFedMfConfig) -> Guarantee:
    """User-level over the whole run, or the paper's claim."""
    privacy = config.privacy
    if config.calibration == "as-published":
        return Guarantee(
            basis="as published", unit="user", adjacency="replace-one", epsilon=privacy.epsilon, delta=0.0,
            scope="per message", trust="nobody",
            caveats=(
                "The claim does not hold: the rows are clipped in L2 but Laplace noise needs the L1 norm, every row of "
                "the message is charged as if it were the only one, and rounds do not add up.",
                "A simulated run protects nobody.",
            ),
        )  # fmt: skip
    adjacency: Adjacency = "add-remove" if config.cohort.sampling == "poisson" else "replace-one"
    return Guarantee(
        basis="proven", unit="user", adjacency=adjacency, epsilon=privacy.epsilon, delta=privacy.delta,
        scope="whole run", trust="server",
        caveats=(
            "The server sees every clipped update before it adds the noise; the model and all who get it see only sums.",
            "The vector of a user never leaves the device and is not covered.",
            "How many users there are, and the settings, are taken as public.",
            "A simulated run protects nobody.",
        ),
    )  # fmt: skip


METHOD = Method(
    name="dp-fedmf",
    kind="federated",
    paper="baseline of Xue et al. 2026 (priv-fedmf-sub), after Li et al., Federated Matrix Factorization with Privacy "
    "Guarantee, VLDB 2021; proven form ours",
    model="matrix factorisation",
    summary="fedmf whose users are covered by differential privacy",
    datasets=("ml-100k", "ml-1m", "frappe", "csv", "synthetic-ratings"),
    config=DpFedMfConfig,
    build=build,
    guarantee=guarantee,
    rounds=20,
    rounds_are_fixed=True,
    item_parameters=32,
    deviations=(
        "as published: the paper perturbs the gradient of every local epoch and uploads each; here a device uploads one "
        "change per round",
    ),
)
