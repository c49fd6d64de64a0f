"""A release at work: opened, checked, and ready to rank on a device or to take in new items on a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from veilrec._arrays import Floats
from veilrec._csr import Csr
from veilrec.data.population import ItemTable, Strings
from veilrec.device.client import Allowance, Client, Texts, open_client
from veilrec.device.rankers import FactorModel, FcfModel
from veilrec.device.released import (
    ITEMS_FILE,
    SERVING_FILE,
    ReleasedFactors,
    ReleasedModel,
    ReleasedNews,
    ReleasedRanker,
)
from veilrec.device.server_link import ServerLink
from veilrec.device.veil_released import ReleasedCatalogue
from veilrec.errors import BadInput
from veilrec.runs.model_files import ModelFiles, load_model
from veilrec.simulate.trainer import ModelParts
from veilrec.wire.releases import BadRelease, Release

Embed = Callable[[str, str, str, str], Floats]  # title, abstract, category, subcategory -> [dim]


def texts_of(release: Release) -> Texts:
    """Ids and titles."""
    arrays = release.arrays(ITEMS_FILE)
    ids = Strings(arrays["ids.offsets"], arrays["ids.data"])
    return Texts(ids, Strings(arrays["titles.offsets"], arrays["titles.data"]), ids.find)


def ranking_of(release: Release) -> ReleasedModel:
    """What ranks on a device; needs neither torch nor the data of the training."""
    if release.family == "news":
        return ReleasedNews(release)
    if release.family == "catalogue":
        return ReleasedCatalogue(release)
    model = _parts(_files(release)).model(_nobody())
    if release.family == "factors" and isinstance(model, FactorModel | FcfModel):
        return ReleasedFactors(model, release.arrays(SERVING_FILE))
    return ReleasedRanker(model)


def open_device(
    state: Path, release: Release, *, server: ServerLink | None = None, allowance: Allowance | None = None
) -> Client:
    """The device whose state lies in a folder, with this release."""
    return open_client(state, release, ranking_of(release), texts_of(release), server=server, allowance=allowance)


def embedder(release: Release) -> Embed | None:
    """What turns the text of a new item into its vector, with the released network; None where items have no text."""
    if release.family != "news":
        return None
    from veilrec.methods.news.ranker import NewsScorer

    scorer = _parts(_files(release)).model(_nobody())
    if not isinstance(scorer, NewsScorer):
        raise BadRelease(f"release {release.name} is of the family news and ranks in another way")

    def embed(title: str, abstract: str = "", category: str = "", subcategory: str = "") -> Floats:
        one = ItemTable(
            Strings.of([title]),
            Strings.of([category]),
            Strings.of([subcategory]),
            Strings.of([abstract]),
            Strings.of([""]),
        )
        vector: Floats = scorer.on(one).states[0].numpy()
        return vector

    return embed


def _files(release: Release) -> ModelFiles:
    try:
        return load_model(release.folder / "model")
    except BadInput as error:
        raise BadRelease(f"the model of release {release.name} cannot be used: {error}") from None


def _parts(files: ModelFiles) -> ModelParts:
    return ModelParts(files.ranker, files.weights, sent=files.sent)


def _nobody() -> Csr:
    import numpy as np

    return Csr(np.zeros(1, np.int64), np.zeros(0, np.int32))
