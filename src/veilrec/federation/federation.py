"""What everybody in a federation agrees on: one file, `federation.yaml`, that holds nothing of any user."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import urlsplit

import yaml

from veilrec._version import __version__
from veilrec.core.errors import BadInput, unknown_name
from veilrec.core.files import write_text
from veilrec.federation.secagg.graph import Neighbourhood
from veilrec.wire.signing import checked_host

if TYPE_CHECKING:
    from veilrec.privacy.budget import Budget

FORMAT = 1
FILE, FACTS, CA, INVITED = "federation.yaml", "facts", "ca.pem", "invitations.json"
COORDINATOR, DEVICES, HELPERS, PEOPLE, RUN, LOGS = "coordinator", "devices", "helpers", "people", "run", "logs"
SecAgg = Literal["none", "helpers", "pairs"]


@dataclass(frozen=True, kw_only=True)
class Federation:
    """One federation: the method as it is configured, who may take part in what, and until when."""

    id: str  # 32 hexadecimal digits: part of whatever a device signs
    address: str  # of the coordinator, https
    method: str
    config: dict[str, Any]
    rounds: int
    seed: int  # the public one
    dataset: str  # what the people's data was called where it came from
    protocol: str
    devices: int  # that may learn
    judges: int  # that only judge, after the last round; places that nobody has yet are among both
    plan: str  # a digest: whoever makes another plan of this file does not take part
    facts: str  # a digest of the folder beside it
    unprotected: bool  # whether messages leave in plaintext
    budget: dict[str, Any]  # what a device may spend, for good
    guarantee: dict[str, Any]
    places: int = 0  # that were kept free for devices that come later
    secagg: SecAgg = "none"
    helpers: tuple[str, ...] = ()  # the lasting keys of those who help to add up, in hexadecimal digits
    least: int = 2  # devices without which no secure sum is opened
    neighbourhood: dict[str, int] = field(default_factory=dict)  # of sums among devices alone: who masks with whom
    invited: str = ""  # likewise: a digest of the list of invitations beside this file
    shares: bool = False  # whether devices add the noise of a sum, each a part, so that nobody sees one without
    silent: float = 0.0  # of `least`, the part that may add none, or tell theirs
    rehearsal: bool = False  # its devices draw from one secret that somebody holds: nobody is protected
    minimum_messages: int | None = None  # None: what the plan's proof needs
    over_selection: float = 1.0
    enrol_seconds: float = 60.0  # that the first round waits for devices that were invited
    report_seconds: float = 60.0
    round_seconds: float = 60.0
    judge_seconds: float = 60.0
    trip_seconds: float = 20.0  # of one RPC of pairwise secure aggregation

    @property
    def digest(self) -> bytes:
        """The id of the federation in secure aggregation."""
        return hashlib.sha256(self.id.encode()).digest()

    def woven(self) -> Neighbourhood:
        """Parameters of the graph of pairwise secure aggregation."""
        try:
            return Neighbourhood(**self.neighbourhood)
        except TypeError:
            raise BadInput(f"{FILE}: the neighbourhood is not whole; bring back the one that init wrote") from None

    def spending(self) -> Budget:
        """The privacy budget of a client."""
        from veilrec.privacy.budget import Budget  # accounting, which an aggregation helper does not need

        return Budget(**self.budget)


def command(name: str, folder: Path) -> str:
    """A command about a federation's folder, as a shell takes it."""
    return f"veilrec federate {name} {shlex.quote(str(folder))}"


def write(federation: Federation, folder: Path) -> None:
    """Write `federation.yaml`."""
    content = {"format": FORMAT, "veilrec": __version__, **asdict(federation), "helpers": list(federation.helpers)}
    write_text(folder / FILE, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def read(folder: Path) -> Federation:
    """Read and check `federation.yaml`."""
    path = folder / FILE
    if not folder.is_dir():
        raise BadInput(f"there is no federation {folder}: make one with `{command('init', folder)}`")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        half = (folder / COORDINATOR).is_dir() and (folder / DEVICES).is_dir()
        advice = "give the folder that `veilrec federate init` made"
        if half:  # of anything else nobody should be told to remove it
            advice = f"it has no {FILE}, which `veilrec federate init` writes last; remove it and make it again"
        raise BadInput(f"{folder} is no federation: {advice}") from None
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read ({type(error).__name__}): bring back the one that init wrote") from None
    return _checked(path, content)


def _checked(path: Path, content: Any) -> Federation:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else None
        raise BadInput(f"{path} has format {found}, this veilrec reads {FORMAT}: use the veilrec that made it")
    names = {one.name for one in fields(Federation)}
    given = {name: value for name, value in content.items() if name not in ("format", "veilrec")}
    needed = {one.name for one in fields(Federation) if one.name in _NEEDED}
    if missing := sorted(needed - set(given)):
        raise BadInput(f"{path} is not whole: it says nothing of {missing[0]}; bring back the one that init wrote")
    if odd := sorted(set(given) - names):
        raise BadInput(f"{path}: {unknown_name('entry', odd[0], names)}")
    if given.get("secagg", "none") not in get_args(SecAgg):
        raise BadInput(f"{path}: {unknown_name('secagg', str(given['secagg']), get_args(SecAgg))}")
    whole = {name: given[name] for name in ("devices", "judges", "rounds", "seed")}
    if not _is_address(given["address"]):
        raise BadInput(f"{path}: address is {given['address']!r}; bring back the one that init wrote")
    woven = given.get("neighbourhood", {})
    for name, value in (whole | (woven if isinstance(woven, dict) else {"neighbourhood": woven})).items():
        if not isinstance(value, int):
            raise BadInput(f"{path}: {name} is {value!r}, not a whole number; bring back the one that init wrote")
    return Federation(**{**given, "helpers": tuple(given.get("helpers", ()))})


def _is_address(given: Any) -> bool:
    try:
        address = urlsplit(str(given))
        return bool(checked_host(address.hostname or "") and address.port)
    except (ValueError, BadInput):
        return False


_NEEDED = (
    "id",
    "address",
    "method",
    "config",
    "rounds",
    "seed",
    "dataset",
    "protocol",
    "devices",
    "judges",
    "plan",
    "facts",
    "unprotected",
    "budget",
    "guarantee",
)
