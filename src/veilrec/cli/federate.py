"""`veilrec federate`: train a method on networked clients over HTTPS or Flower."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from veilrec.cli.output import Json, data_names, flat_options, method_names, print_json, protocol_names, say
from veilrec.core.errors import BadInput, counted, some_of

if TYPE_CHECKING:
    from threading import Event

    from veilrec.federation.facts import FederationFacts
    from veilrec.federation.federation import Federation
    from veilrec.federation.trust import TrustCosts


app = typer.Typer(
    no_args_is_help=True, help="Train a method on networked clients over HTTPS, on one machine or several."
)
Folder = Annotated[Path, typer.Argument(help="Folder of a federation that `veilrec federate init` made.")]


FederationFolder = Annotated[
    Path | None,
    typer.Option("--federation", help="Where federation.yaml, facts and ca.pem lie; usually two folders above."),
]


_OF_LEDGERS = (
    "an upper bound, in zCDP and as if there were no sampling and no masks, so that it may end above the promise with"
    " nothing overspent; promised is"
)


class Lines:
    """A line whenever a round is over or others are waited for; in a terminal, one that is written over."""

    def __init__(self) -> None:
        self._last = ""
        self._awaited: list[str] = []

    def show(self, status: Mapping[str, Any]) -> None:
        """Say how far it has come, if that is news."""
        line = status_line(status)
        if not line or line == self._last:
            return
        self._last = line
        awaited = status.get("waiting_for") or self._awaited
        others, self._awaited = awaited != self._awaited, awaited
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()
        elif status.get("stage") in ("between rounds", "over", "judged") or not status.get("this_round") or others:
            say(line)


def _facts(folder: Path) -> FederationFacts:
    from veilrec.federation import federation
    from veilrec.federation.facts import FederationFacts

    return FederationFacts(folder, federation.read(folder))


def status_line(status: Mapping[str, Any]) -> str:
    """How far a federation has come, in one line."""
    from veilrec.report.labels import human_bytes

    if "clients" not in status:
        return str(status.get("stage", "not started"))
    here, invited = status["clients"]["here"], status["clients"]["invited"]
    void = f", {status['void']} void" if status["void"] else ""
    down, sent = human_bytes(status["down_bytes"]), human_bytes(status["up_bytes"])
    owing = some_of(status.get("waiting_for", ()))
    stage = f"{status['stage']}, waiting for {owing}" if owing else status["stage"]
    return (
        f"round {status['round']}/{status['rounds']}{void}  {stage}  clients {here}/{invited}"
        f"  messages {status['messages']}  down {down}  up {sent}{_odd(status)}"
    )


def _odd(status: Mapping[str, Any]) -> str:
    """Who took no part, and who acted on something else than the others."""
    declined = ", ".join(f"{count} declined ({why})" for why, count in status.get("declined", {}).items())
    differing = "; ".join(
        f"round {number} void: {', '.join(who)} acted on something else than the others"
        for number, who in status.get("differing", {}).items()
    )
    return "".join(f"  {part}" for part in (declined, differing) if part)


def print_status(found: Mapping[str, Any]) -> None:
    """What `veilrec federate status` says in words."""
    state = "up" if found["up"] else "over" if found["finished"] else "down"
    say(f"{found['method']} ({state}) at {found['address']}: {status_line(found['run'])}")
    say(f"Trust: {found['trust']}")
    ledgers = found["ledgers"]
    if ledgers["largest"] is not None:
        most = ledgers["largest"]
        bases = {most["basis"], found["promised"]["basis"]}
        why = f" ({_OF_LEDGERS}: {found['promised']['line']})" if bases == {"proven"} else ""
        say(f"{ledgers['clients']} ledgers here; the one that has spent most: {most['line']}{why}")
    if found["rehearsal"]:
        say("A rehearsal: it protects nobody.")


@dataclass(frozen=True)
class InitOptions:
    """A federation to be made."""

    method: Annotated[str, typer.Option(help="A federated method.", autocompletion=method_names)]
    data: Annotated[str, typer.Option(help="NAME or NAME:PATH.", autocompletion=data_names)]
    clients: Annotated[int, typer.Option(min=1, help="How many people of the data, drawn by the seed.")] = 20
    places: Annotated[
        int, typer.Option(min=0, help="Kept free for clients that are invited later (`federate invite`).")
    ] = 0
    settings: Annotated[list[str] | None, typer.Option("--set", help="name=value, for example local.epochs=3.")] = None
    seed: Annotated[int, typer.Option(min=0, help="Public seed.")] = 0
    rounds: Annotated[int | None, typer.Option(min=1, help="Instead of the method's own.")] = None
    protocol: Annotated[str | None, typer.Option(help="How the model is measured.", autocompletion=protocol_names)] = (
        None
    )
    rehearsal: Annotated[
        bool, typer.Option("--rehearsal", help="All noise from one secret, to compare with a simulation: NOT private.")
    ] = False
    host: Annotated[str, typer.Option(help="Name or address at which clients reach the coordinator.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8471
    minimum_messages: Annotated[int | None, typer.Option("--least", help="Messages below which a round is void.")] = (
        None
    )
    round_seconds: Annotated[float, typer.Option(min=0.1, help="Until when messages of a round count.")] = 60.0
    public_catalogue: Annotated[
        bool, typer.Option("--public-catalogue", help="Say that anybody may know the items, where no table lists them.")
    ] = False


@dataclass(frozen=True)
class TrustOptions:
    """What the server of the federation may see."""

    trust: Annotated[
        Literal["server", "sums", "noisy-sums"] | None,
        typer.Option(
            help="What the server sees: every message (server), sums alone (sums), or sums with noise that clients have"
            " added (noisy-sums). Default: the strongest that the method has."
        ),
    ] = None
    secagg: Annotated[
        Literal["helpers", "pairs"] | None,
        typer.Option(help="Secure aggregation by helpers that others run (default), or among clients alone (pairs)."),
    ] = None
    helpers: Annotated[int | None, typer.Option(min=1, max=16, help="How many helpers. Default: 2.")] = None
    silent: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=0.99,
            help="With noisy-sums: share of clients that may add no noise, or tell the server theirs. Default: 0 with"
            " helpers; as many as may collude in pairs.",
        ),
    ] = None
    lost: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=0.99,
            help="Share of clients that may drop out of a round. Default: 0.1 with noisy-sums, and free places beside"
            " it; 0.3 with sums in pairs.",
        ),
    ] = None
    corrupt: Annotated[
        float | None,
        typer.Option(min=0.0, max=0.99, help="With pairs: share of a cohort that may collude. Default: 0.2."),
    ] = None
    distributed_noise: Annotated[bool, typer.Option("--distributed-noise", hidden=True)] = False


@app.command()
@flat_options
def init(
    *,
    folder: Annotated[Path, typer.Argument(help="Folder to make: coordinator, clients, keys, certificates.")],
    options: InitOptions,
    trust: TrustOptions,
    json_output: Json = False,
) -> None:
    """Make a federation: a folder for the coordinator, and one for every client with its own user's data only.

    Examples:

        veilrec federate init trial --method dp-fedmf --data ml-100k

        veilrec federate init trial --method dp-fedmf --data ml-100k --trust server
    """
    from veilrec.federation.federation import command
    from veilrec.federation.making import FederationOptions, trusting
    from veilrec.federation.trust import TrustWishes, trust_line
    from veilrec.privacy.guarantee import Guarantee

    asked = vars(trust) | {}
    if asked.pop("distributed_noise"):
        raise BadInput("--distributed-noise is now --trust noisy-sums, which is the default where a method has it")
    wishes = FederationOptions(**vars(options) | {"settings": tuple(options.settings or ())})
    made, costs = trusting(folder, wishes, TrustWishes(**asked))
    for note in made.notes:
        say(note)
    if made.federation.unprotected and made.federation.secagg == "none":
        say("Messages of this method leave in plaintext: nothing is promised about what they give away.")
    if options.rehearsal:
        say("A rehearsal: whoever holds its secret can draw all noise again. It protects nobody.")
    guarantee = Guarantee.from_json(made.federation.guarantee)
    line = trust_line(made.federation)
    if json_output:
        told = {name: getattr(made.federation, name) for name in ("id", "address", "method", "rounds", "clients")}
        about = {"trust": costs.trust, "trust_line": line, "costs": costs.to_json()}
        print_json(
            {"folder": str(folder), **told, "guarantee": made.federation.guarantee, **about, "notes": list(made.notes)}
        )
        return
    kept = f" ({made.federation.places} of them come later)" if made.federation.places else ""
    say(
        f"{folder}: {made.federation.clients} clients{kept}, {counted(made.federation.rounds, 'round')} of"
        f" {made.federation.method}"
    )
    say(f"Promised: {guarantee.line()}")
    say(f"Trust: {line} (--trust {costs.trust})")
    for words in cost_lines(costs):
        say(words)
    say(f"Start it with `{command('up', folder)}`")


def cost_lines(costs: TrustCosts) -> list[str]:
    """What a trust model costs, in words, beside `--trust server`."""
    from veilrec.report.labels import human_bytes

    mine, server = costs.traffic, costs.by_server

    def beside(one: float, other: float) -> str:
        return human_bytes(one) if costs.trust == "server" else f"{human_bytes(one)} ({human_bytes(other)})"

    told = "" if costs.trust == "server" else ", with --trust server in brackets"
    lines = [f"It takes: {party}" for party in costs.parties]
    lines.append(
        f"Bytes of a client{told}: a round sends {beside(mine.message, server.message)} and gets"
        f" {beside(mine.model, server.model)}; the run sends {beside(mine.run_up, server.run_up)} and gets"
        f" {beside(mine.run_down, server.run_down)}, in {mine.rounds:.3g}"
        f" {'round' if mine.rounds == 1 else 'rounds'} on average"
    )
    if costs.noise:
        factors = ", ".join(f"{factor:.3g} times on {what}" for what, factor in costs.noise.items())
        lines.append(f"Noise beside --trust server, standard deviation on all sums: {factors}")
    if costs.accuracy:
        told = ", ".join(f"{name} {here:.4f} ({there:.4f})" for name, (here, there) in costs.accuracy.items())
        lines.append(f"Accuracy of this rehearsal, simulated, with --trust server in brackets: {told}")
    elif costs.compare:
        lines.append(f"What that costs in accuracy: `{costs.compare}`")
    return lines


@app.command()
def up(
    folder: Folder,
    transport: Annotated[Literal["https", "flower"], typer.Option(help="flower needs the extra `flower`.")] = "https",
    detach: Annotated[bool, typer.Option("--detach", help="In the background; see `status` and `down`.")] = False,
    json_output: Json = False,
) -> None:
    """Start the coordinator and every client of the folder; ends when the rounds are over, and writes a run folder."""
    from veilrec.federation import federation, running
    from veilrec.federation.facts import FederationFacts
    from veilrec.federation.finishing import finish
    from veilrec.runs.checkpoint import RESULT, read_result

    if transport == "flower":
        _need_flower(federation.read(folder))
    if detach:
        pid = running.detach(folder, transport)
        if json_output:
            print_json({"folder": str(folder), "pid": pid, "address": federation.read(folder).address})
        else:
            say(f"Up in the background (process {pid}): see `{federation.command('status', folder)}`")
        return
    started = running.Up(folder, say, transport=transport)
    if (folder / "run").exists():
        say(f"{folder} is over: {folder / 'run'} is what came of it")
        if json_output:
            result = read_result(folder / "run") if (folder / "run" / RESULT).is_file() else None
            print_json({"folder": str(folder / "run"), "seconds": 0.0, "result": result})
        return
    begun = time.perf_counter()
    started.run(Lines().show)
    finished = finish(folder, FederationFacts(folder, started.made))
    seconds = time.perf_counter() - begun
    say(f"Over in {seconds:.1f} s. The model is in {folder / 'run'}")
    if json_output:
        print_json({"folder": str(folder / "run"), "seconds": round(seconds, 3), "result": finished.result})
    _check_learnt(finished.void)


def _check_learnt(void: str) -> None:
    """A federation that learnt nothing is no success."""
    if void:
        say(void)
        raise typer.Exit(1)


@app.command("status")
def show_status(
    folder: Folder,
    watch: Annotated[bool, typer.Option("--watch", help="Again every second, until it is not up any more.")] = False,
    json_output: Json = False,
) -> None:
    """Show rounds, clients, bytes, and the privacy spent by the ledgers of local clients."""
    from veilrec.federation.running import status

    if watch and json_output:
        raise BadInput("--json prints one object, and --watch prints again and again: leave one of them out")
    while True:
        found = status(folder)
        if json_output:
            print_json(found)
        else:
            print_status(found)
        if not watch or not found["up"]:
            return
        time.sleep(1.0)


@app.command("audit")
def audit_sums(
    folder: Folder,
    helper_folder: Annotated[
        Path | None, typer.Option("--helper", help="Folder of a helper, whose journal has to agree.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Check from the transcripts of secure sums who was counted, and that all of them had signed the same."""
    from veilrec.federation.auditing import audit

    found = audit(folder, helper_folder)
    if json_output:
        print_json({"folder": str(folder), **vars(found), "problems": list(found.problems)})
    else:
        for problem in found.problems:
            say(problem)
        say(found.line())
    if found.problems:
        raise typer.Exit(1)


@app.command()
def down(folder: Folder, json_output: Json = False) -> None:
    """End the processes that `up` started, and nothing else; `up` goes on later where it was."""
    from veilrec.federation import federation, processes

    federation.read(folder)
    ended = processes.end(folder)
    if json_output:
        print_json({"ended": [vars(process) for process in ended]})
    else:
        say(f"Ended: {', '.join(f'{p.name} ({p.pid})' for p in ended)}" if ended else "Nothing was up.")


@app.command()
def coordinator(
    folder: Folder,
    stay: Annotated[bool, typer.Option("--stay", help="Go on telling clients that it is over.")] = False,
    page: Annotated[
        str | None, typer.Option(help="Origin whose pages may be clients, such as https://news.example.org.")
    ] = None,
) -> None:
    """Run the coordinator alone, on its own host; it writes the model when the rounds are over."""
    from veilrec.federation import federation
    from veilrec.federation.coordinator.process import coordinate
    from veilrec.federation.finishing import finish

    if page is not None:
        from veilrec.wire.signing import checked_origin

        checked_origin(page)
    known = _facts(folder)
    is_over = coordinate(folder, known, lambda url: say(f"Coordinating at {url}"), stay=stay, page=page)
    if not is_over:
        say("Stopped: it goes on from here when it is started again")
    elif not (folder / federation.PEOPLE).is_dir() and not (folder / federation.RUN).exists():
        finished = finish(folder, known)  # where the people are, `up` measures the model too
        say(f"The model is in {folder / federation.RUN}")
        _check_learnt(finished.void)


@app.command("page")
def page_file(folder: Folder, out: Annotated[Path, typer.Argument(help="File to write, to be handed out.")]) -> None:
    """Write the public file that a browser takes part with, beside an invitation."""
    from veilrec.federation.page import write_page

    size = write_page(_facts(folder), out)
    say(f"{out}: {size:,} bytes, for everybody. With it and the text of an invitation a page takes part")


@app.command()
def client(
    folders: Annotated[list[Path], typer.Argument(help="Folders of clients; each gets a process of its own.")],
    federation_folder: FederationFolder = None,
    link: Annotated[
        str | None, typer.Option(help="HOST:PORT of a link of Flower to come by; otherwise over HTTPS.")
    ] = None,
) -> None:
    """Run one client, or several, on a host of their own."""
    from veilrec.federation.client.folder import check
    from veilrec.federation.client.process import RunClient, run_client, run_clients

    for folder in folders:
        check(folder)
    known = _facts(federation_folder or folders[0].resolve().parent.parent)
    run: RunClient = run_client
    if link is not None:
        _need_flower(known.federation)
        from veilrec.federation.client.flower_client import node_at

        run = node_at(link)
    if not run_clients(folders, known, say, run):
        raise typer.Exit(2)


@app.command("link")
def run_link(
    folder: Folder,
    public: Annotated[
        str | None, typer.Option(help="HOST:PORT where nodes reach it; default: the port beside the coordinator's.")
    ] = None,
) -> None:
    """Run Flower's SuperLink with its public routes filtered, and the coordinator on it."""
    from veilrec.federation import federation

    made = federation.read(folder)
    _need_flower(made)
    from veilrec.federation.coordinator.flower_server import Link
    from veilrec.federation.coordinator.process import last_status
    from veilrec.federation.facts import FederationFacts
    from veilrec.federation.flower_messages import public_address
    from veilrec.federation.running import live_status

    address = public or public_address(made.address)
    server, stop = Link(folder, FederationFacts(folder, made), address, say), _stop_on_signal()
    say(f"Nodes reach the link at {address}")
    server.run(lambda: live_status(folder, made) is not None, lambda: last_status(folder).get("stage") == "over", stop)


@app.command("flower-app")
def flower_app(
    folder: Folder, out: Annotated[Path, typer.Argument(help="Folder to write: what `flwr run` takes.")]
) -> None:
    """Write an app for those who run Flower themselves, in stock SuperNodes or in its simulation."""
    from veilrec.federation import federation
    from veilrec.federation.flower_messages import check_plaintext, write_app

    check_plaintext(federation.read(folder))
    write_app(out, folder)
    say(f"{out}: start it with `flwr run {out}`, with veilrec and its extra flower on every machine")


def _need_flower(made: Federation) -> None:
    """Refuse what Flower does not carry, then say what is not installed."""
    from veilrec.core.resources import require
    from veilrec.federation.flower_messages import check_plaintext

    check_plaintext(made)

    require("carrying a federation by Flower", "flwr")


def _stop_on_signal() -> Event:
    """Return an event that SIGTERM or Ctrl-C sets."""
    import signal
    from threading import Event

    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


@app.command()
def helper(
    folder: Annotated[Path, typer.Argument(help="Folder of a helper that `veilrec federate init --secagg` made.")],
    federation_folder: Annotated[
        Path | None,
        typer.Option("--federation", help="Where federation.yaml and ca.pem lie; usually two folders above."),
    ] = None,
) -> None:
    """Run a secure aggregation helper, on a host of its own operator."""
    from veilrec.federation.helper import run_helper

    run_helper(folder, federation_folder or folder.resolve().parent.parent, say, _stop_on_signal())


@app.command()
def revoke(folder: Folder, name: Annotated[str, typer.Argument(help="Of the client, such as d00003.")]) -> None:
    """Permanently reject a client."""
    from veilrec.federation import federation
    from veilrec.federation.coordinator.registry import Registry

    federation.read(folder)
    with Registry(folder / federation.COORDINATOR) as registry:
        registry.revoke(name)
    say(f"{name} is revoked")


@app.command()
def rehearse(folder: Folder, json_output: Json = False) -> None:
    """Simulate a rehearsal that is over with its own secrets: both have to come to the same weights, bit for bit."""
    from veilrec.federation.finishing import rehearse as compare

    found = compare(folder)
    if json_output:
        print_json(vars(found))
    else:
        said = "the same weights, bit for bit" if found.same else "OTHER weights"
        say(f"{counted(found.rounds, 'round')}: the federation and its simulation have {said}")
        say(f"federation {found.federation}\nsimulation {found.simulation}")
        if found.gaps:
            say(f"In {found.gaps} rounds somebody was missing, and in a simulation nobody is.")
    if not found.same:
        raise typer.Exit(1)


@app.command()
def invite(
    folder: Annotated[Path, typer.Argument(help="Folder of a federation that has free places.")],
    data: Annotated[
        str | None, typer.Option(help="NAME or NAME:PATH to take the person's data from; otherwise the user brings it.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Of the data, where it has several.")] = None,
    json_output: Json = False,
) -> None:
    """Invite a new client to a free place, also while rounds are running; writes its folder.

    Example:

        veilrec federate invite trial --data csv:anna.csv
    """
    from veilrec.data.datasets import load
    from veilrec.federation.joining import invite as hand_out

    if user is not None and data is None:
        raise BadInput(f"--user {user} is somebody of a data set: add --data")
    known = _facts(folder)
    invited = hand_out(folder, known, None if data is None else load(data), user)
    unheard = [
        name for name in (f"helper-{n}" for n in range(len(known.federation.helpers))) if name not in invited.told
    ]
    if json_output:
        told = {name: getattr(invited, name) for name in ("name", "role", "announcement", "free")}
        left_out = None if invited.brought is None else invited.brought.left_out
        print_json({**told, "folder": str(invited.folder), "left_out": left_out, "helpers_to_tell": unheard})
        return
    say(f"{invited.folder} is for one new user ({invited.role}); free places: {invited.free}")
    if invited.brought is None:
        say("It has no data yet: its user brings it with `veilrec federate bring`")
    elif invited.brought.left_out:
        say(f"Left out: {counted(invited.brought.left_out, 'item')} that this federation does not know")
    for name in unheard:
        say(f"Before it starts, on the host of {name}: `veilrec federate admit {name} {invited.announcement}`")


@app.command()
def bring(
    folder: Annotated[Path, typer.Argument(help="Folder of a client that `veilrec federate invite` made.")],
    data: Annotated[str, typer.Option(help="NAME or NAME:PATH, such as csv:own.csv.")],
    user: Annotated[str | None, typer.Option(help="Of the data, where it has several.")] = None,
    federation_folder: FederationFolder = None,
) -> None:
    """Put your own data into the folder of your client, sealed; it is read here, and nobody else sees it."""
    from veilrec.data.datasets import load
    from veilrec.federation.joining import bring as put

    brought = put(folder, _facts(federation_folder or folder.resolve().parent.parent), load(data), user)
    left_out = f"; left out: {counted(brought.left_out, 'item')} that this federation does not know"
    say(f"{folder} has its data{left_out if brought.left_out else ''}")


@app.command()
def admit(
    folder: Annotated[Path, typer.Argument(help="Folder of a helper.")],
    announcement: Annotated[str, typer.Argument(help="What `veilrec federate invite` said of the new client.")],
) -> None:
    """Let a helper accept a client that was invited later."""
    from veilrec.federation.helper import admit as add

    say(f"{add(folder, announcement)} may take part in secure sums")
