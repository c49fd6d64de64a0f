"""`veilrec release` and `veilrec serve`: sign a trained model as a release, verify it, serve it over HTTP."""

from __future__ import annotations

import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from veilrec.cli.output import Json, Run, print_json, say
from veilrec.core.errors import BadInput

if TYPE_CHECKING:
    from veilrec.serving.service import Embed
    from veilrec.wire.releases import Release


_MAKE = "make"


class _MakeByDefault(TyperGroup):
    """`release RUN` is `release make RUN`: a word that is no command is the folder of a run."""

    default_command = _MAKE

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = next((place for place, word in enumerate(args) if not word.startswith("-")), None)
        if args and "--help" not in args[:1] and (first is None or args[first] not in self.commands):
            args = [self.default_command, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_MakeByDefault,
    no_args_is_help=True,
    help="Sign a trained model for servers and clients: `veilrec release RUN --out DIR`; make keys, check releases.",
)
_Folder = Annotated[Path, typer.Argument(help="Folder of a release.")]


@app.command(_MAKE)
def make(
    run: Run,
    out: Annotated[Path, typer.Option(help="Folder for the release; an older version of the same name is replaced.")],
    key: Annotated[
        Path | None,
        typer.Option(help="Secret key of `release keygen`; without it DIR.key is used, and made if it is not there."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="What it is a version of; METHOD-DATASET unless given.")] = None,
    version: Annotated[
        int | None, typer.Option(min=1, help="Its number; one more than what lies in --out unless given.")
    ] = None,
    offer: Annotated[
        list[str] | None,
        typer.Option(
            help="A private query that clients may send, as MODE:EPSILON[:DELTA], of one query; may be repeated. Unless"
            " given: those of interest:1, attention:5 and pooled:5:1e-6 that keep half of the exact ten best of"
            " synthetic readers. Options follow behind commas: attention:10,padding=0.5. plain: the exact user vector,"
            " which nothing protects; a server refuses what is not offered."
        ),
    ] = None,
    rotation: Annotated[
        list[Path] | None, typer.Option(help="A .rotation file of `release keygen --rotates`; oldest first.")
    ] = None,
    revocation: Annotated[
        list[Path] | None, typer.Option(help="A .revocation file of `release revoke`; may be repeated.")
    ] = None,
    days: Annotated[
        int, typer.Option(min=1, max=3660, help="For how many days it is good; then it is warned about, and refused.")
    ] = 90,
    unprotected: Annotated[
        bool,
        typer.Option("--unprotected", help="Release a run that no proof covers; the release and its pages say so."),
    ] = False,
    metrics: Annotated[
        bool,
        typer.Option("--with-metrics", help="Put exact metrics of real people into the card; no proof covers them."),
    ] = False,
    json_output: Json = False,
) -> None:
    """Release the model of a run: weights, encoder, item vectors, texts, guarantee, model card, all signed.

    Examples:

        veilrec release runs/privaterec --out releases/news

        veilrec release runs/fedmf --out releases/films --key films.key --unprotected
    """
    from veilrec.runs.release import ReleaseOptions, make_release, refuse_unpublishable
    from veilrec.wire.signing import new_key, read_key

    wishes = ReleaseOptions(name, version, unprotected, offer or None, metrics, days)
    refuse_unpublishable(run, wishes)  # before a key is made
    place = key or out.with_name(out.name + ".key")
    if key is None and not place.exists():
        signing = new_key(place)
        say(f"Made a key: {place} is secret, {place}.pub is for clients.")
    else:
        signing = read_key(place)
    made = make_release(
        run, out, signing, wishes, [_sentence(path) for path in (*(rotation or ()), *(revocation or ()))]
    )
    figures = made.manifest["figures"]
    for line in (*figures["offers"], *(f"not offered: {why}" for why in figures["not_offered"])):
        say(f"Offer {line}." if line in figures["offers"] else f"{line[0].upper()}{line[1:]}.")
    _warn_of_offers(made)
    _tell(_facts(made), json_output)


def _warn_of_offers(release: Release) -> None:
    from veilrec.runs.release_model import beyond_budget

    for line in beyond_budget(release):
        say(f"Offer {line}.")


@app.command("verify")
def verify(
    release: _Folder,
    key: Annotated[
        str | None, typer.Option(help="The public key that it must be signed by: a .pub file, or its 64 digits.")
    ] = None,
    after: Annotated[
        Path | None, typer.Option(help="An older release of the same name, which this one has to follow.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Check a release as a client does: signature, sizes, hashes, shapes, and that it is no step back.

    Examples:

        veilrec release verify releases/news --key releases/news.key.pub
    """
    from veilrec.wire.releases import open_release
    from veilrec.wire.signing import read_public

    trusted = None if key is None else read_public(key)
    newest = None if after is None else open_release(after, trusted=trusted, clock=None).newest
    opened = open_release(release, trusted=trusted, newest=newest)
    if trusted is None:
        say("Whole, and signed by the key that it names itself; whose that is nobody has said: give --key.")
    if warning := opened.warning(time.time()):
        say(f"{warning}.")
    _tell(_facts(opened), json_output)


@app.command("keygen")
def keygen(
    file: Annotated[Path, typer.Argument(help="Where the secret key goes; the public one goes beside it, with .pub.")],
    rotates: Annotated[
        Path | None,
        typer.Option(help="The secret key that hands over to the new one: FILE.rotation then says so, signed by it."),
    ] = None,
    json_output: Json = False,
) -> None:
    """Make a key that signs releases, or one that takes over from an older key.

    Examples:

        veilrec release keygen news.key

        veilrec release keygen news-2.key --rotates news.key
    """
    from veilrec.core.files import write_json
    from veilrec.wire.signing import Rotation, new_key, public_path, read_key

    old = None if rotates is None else read_key(rotates)
    made = new_key(file)
    facts = {"secret": str(file), "public": str(public_path(file)), "key": made.public.hex()}
    if old is not None:
        handed = file.with_name(file.name + ".rotation")
        write_json(handed, Rotation.made(old, made.public).to_json())
        facts["rotation"] = str(handed)
    _tell(facts, json_output)


@app.command("revoke")
def revoke(
    revoked: Annotated[str, typer.Argument(help="The public key that signs nothing any more: .pub file or 64 digits.")],
    key: Annotated[Path, typer.Option(help="Another secret key that clients trust, which says so.")],
    out: Annotated[Path, typer.Option(help="File for the revocation, which `release --revocation` takes.")],
    json_output: Json = False,
) -> None:
    """Revoke a key that was lost or stolen: clients that see it refuse that key for good.

    Examples:

        veilrec release revoke news.key.pub --key news-2.key --out news.revocation
    """
    from veilrec.core.files import refuse_existing, write_json
    from veilrec.wire.signing import Revocation, read_key, read_public

    refuse_existing(out)
    made = Revocation.made(read_key(key), read_public(revoked))
    write_json(out, made.to_json())
    _tell({"revocation": str(out), "revoked": made.revoked.hex(), "by": made.by.hex()}, json_output)


def _sentence(path: Path) -> Any:
    import json

    from veilrec.wire.signing import sentence_of

    try:
        return sentence_of(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        raise BadInput(
            f"{path} is no rotation and no revocation: give a file of `release keygen --rotates` or `release revoke`"
        ) from None


def _facts(release: Any) -> dict[str, Any]:
    from veilrec.wire.releases import promise_of

    files = release.manifest["files"]
    return {
        "release": release.name,
        "version": release.version,
        "method": release.method,
        "family": release.family,
        "items": release.manifest["sizes"]["items"],
        "protected": release.protected,
        "guarantee": promise_of(release.manifest),
        "offers": [offer["mode"] for offer in release.manifest["offers"]],
        "expires": release.manifest["expires"],
        "key": release.key.hex(),
        "bytes": sum(about["bytes"] for about in files.values()),
        "files": len(files),
        "folder": str(release.folder),
    }


def _tell(facts: dict[str, Any], json_output: bool) -> None:
    if json_output:
        print_json(facts)
        return
    for name, value in facts.items():
        shown = f"{value:,}" if isinstance(value, int) else str(value)
        if isinstance(value, list):
            shown = ", ".join(value) or "nothing: clients ask nobody"
        typer.echo(f"{name:>10}  {('yes' if value else 'NO') if isinstance(value, bool) else shown}")


def serve(
    release: Annotated[Path, typer.Argument(help="Folder of a release of `veilrec release`.")],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks one.")] = 8337,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, PEM.")] = None,
    insecure_plaintext: Annotated[
        bool, typer.Option("--insecure-plaintext", help="Serve other machines without TLS: behind a proxy that has it.")
    ] = False,
    admin_token_file: Annotated[
        Path | None, typer.Option(help="File (mode 600) with the token that may add and remove items.")
    ] = None,
    items: Annotated[
        Path | None, typer.Option(help="File of added items. Without it: RELEASE.items.sqlite, beside the folder.")
    ] = None,
    trust: Annotated[
        str | None, typer.Option(help="Public key (hex, or a file with it) that has to have signed the release.")
    ] = None,
    rate: Annotated[float, typer.Option(min=0.0, help="Requests a second of one address; 0: no limit.")] = 200.0,
    connections: Annotated[
        int, typer.Option(min=0, help="Connections of one address at once; 0: no limit, behind a proxy that has one.")
    ] = 256,
    metrics_token_file: Annotated[
        Path | None, typer.Option(help="File (mode 600) with the token that may read /metrics; without it nobody may.")
    ] = None,
    coordinator: Annotated[
        str | None, typer.Option(help="Address of a federation's coordinator that the page may take part in.")
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the address as one JSON object on standard output.")
    ] = False,
) -> None:
    """Serve a release: recommendations for private queries, the pool, the release itself, and a page.

    SIGTERM ends it when what runs is done; SIGHUP takes a newer version that lies in the folder by then.
    """
    from veilrec.serving.app import Settings, read_token
    from veilrec.serving.app import serve as run
    from veilrec.serving.edition import ItemStore
    from veilrec.serving.process import ListenAddress
    from veilrec.serving.service import RecommenderService
    from veilrec.wire.releases import open_release
    from veilrec.wire.signing import checked_origin, read_public

    place = ListenAddress(host, port, tls_cert, tls_key, insecure_plaintext, connections=connections)
    place.check()
    other = None if coordinator is None else checked_origin(coordinator)
    token = None if admin_token_file is None else read_token(admin_token_file)
    metrics_token = None if metrics_token_file is None else read_token(metrics_token_file)
    trusted = None if trust is None else read_public(trust)
    opened = open_release(release, trusted=trusted)
    place_of_items = items or release.resolve().with_name(f"{release.resolve().name}.items.sqlite")
    store = ItemStore(place_of_items) if token is not None or place_of_items.exists() else None
    service = RecommenderService(opened, store=store, embedder_of=_embedder_of, trusted=trusted)

    def announce(url: str) -> None:
        say(f"Serving {opened.name} version {opened.version} at {url}")
        if json_output:
            typer.echo(json.dumps({"address": url, "name": opened.name, "version": opened.version}))

    _warn_of_offers(opened)
    if not opened.protected:
        why = "; ".join(opened.manifest["why_unprotected"]) or "it says no more"
        service.log.event(f"this release is UNPROTECTED: {why}", level="warning")
    settings = Settings(rate=rate, admin_token=token, metrics_token=metrics_token, coordinator=other)
    run(service, settings, place, announce)


def _embedder_of(release: Release) -> Embed | None:
    """The released encoder for new items, where what it needs is installed."""
    if find_spec("torch") is None:
        return None
    from veilrec.runs.release_model import embedder

    return embedder(release)
