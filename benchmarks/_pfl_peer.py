"""A round in Apple's pfl: simulated backend, federated averaging, storage of users' own state."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.bridge import FrameworkBridgeFactory
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from _plain_loop import Batch, Examples, examples_of, make_module, tensors
from _workload import Workload
from veilrec.core.arrays import Offsets

_NEVER = 1 << 30


class _ClientData(Dataset):  # type: ignore[misc]
    """One user's data: pfl iterates over it once an epoch, which draws the fresh negatives."""

    def __init__(self, user: int, examples: Examples) -> None:
        super().__init__((examples.own,), user_id=str(user))
        self._examples = examples

    def iter(self, batch_size: int | None) -> Iterator[Batch]:
        """The batches of an epoch."""
        del batch_size  # of the whole benchmark, not of a call
        return self._examples.epoch()


class _PersonalAveraging(FederatedAveraging):  # type: ignore[misc]
    """Federated averaging in which every user keeps own parameters, as pfl's user storage proposes."""

    def __init__(self, storage: InMemoryUserStateStorage, names: tuple[str, ...]) -> None:
        super().__init__()
        self._storage = storage
        self._names = names

    def train_one_user(
        self, initial_model_state: Any, model: Any, user_dataset: Any, central_context: Any
    ) -> tuple[Any, Metrics]:
        """Load the user's own parameters, learn, keep them, and give back the change of the others."""
        own = {name: getattr(model.pytorch_model, name) for name in self._names}
        state = self._storage.load_state(user_dataset.user_id)
        for name, parameter in own.items():
            parameter.data.copy_(state[name])
        FrameworkBridgeFactory.sgd_bridge().do_sgd(model, user_dataset, central_context.model_train_params)
        self._storage.save_state(
            {name: parameter.detach().clone() for name, parameter in own.items()}, user_dataset.user_id
        )
        return model.get_model_difference(initial_model_state), Metrics()


class PflPeer:
    """pfl's simulator on a workload; data sets and states are made before the first round."""

    def __init__(self, workload: Workload, cohort_of: Callable[[int], Offsets]) -> None:
        local = workload.local
        self._cohort_of = cohort_of
        self._users: Iterator[int] = iter(())
        self.storage = InMemoryUserStateStorage()
        for user in range(len(workload.train)):
            state = {name: torch.tensor(values[user]) for name, values in workload.private.items()}
            self.storage.save_state(state, str(user))
        self.module = make_module(local)
        parameters = dict(self.module.named_parameters())
        with torch.no_grad():
            for name, values in tensors(workload.public).items():
                parameters[name].copy_(values)
        self._model = PyTorchModel(
            self.module,
            lambda _parameters, lr: self.module.optimiser(lr),
            torch.optim.SGD([parameters[name] for name in workload.public], lr=1.0),
        )
        for name in self.module.private:
            self._model.variable_map.pop(name)  # neither sent nor averaged
        data = [_ClientData(user, examples) for user, examples in enumerate(examples_of(workload))]
        federated = FederatedDataset(data.__getitem__, lambda: next(self._users))
        self._backend = SimulatedBackend(training_data=federated, val_data=federated)
        self._algorithm = _PersonalAveraging(self.storage, self.module.private)
        self._params = NNAlgorithmParams(
            central_num_iterations=1,
            evaluation_frequency=_NEVER,
            train_cohort_size=workload.cohort,
            val_cohort_size=None,
        )
        self._train = NNTrainHyperParams(
            local_num_epochs=local.epochs, local_learning_rate=local.rate, local_batch_size=None
        )
        self._rounds = itertools.count(1)

    def round(self, number: int) -> None:
        """One central iteration; the first of all also asks for (empty) metrics, which is the warm-up's."""
        self._users = iter(self._cohort_of(number).tolist())
        self._algorithm.run(
            replace(self._params, central_num_iterations=next(self._rounds)),
            self._backend,
            self._model,
            self._train,
            NNEvalHyperParams(local_batch_size=None),
            send_metrics_to_platform=False,
        )
