"""`veilrec serve`: a release as a service."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilrec.cli.output import say

if TYPE_CHECKING:
    from veilrec.server.http.service import Embed
    from veilrec.wire.releases import Release


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
    from veilrec.server.http.admin import read_token
    from veilrec.server.http.app import Settings
    from veilrec.server.http.app import serve as run
    from veilrec.server.http.item_store import ItemStore
    from veilrec.server.http.running import ListenAddress
    from veilrec.server.http.service import Service
    from veilrec.wire.addresses import checked_origin
    from veilrec.wire.releases import open_release
    from veilrec.wire.signing import read_public

    place = ListenAddress(host, port, tls_cert, tls_key, insecure_plaintext)
    place.check()
    other = None if coordinator is None else checked_origin(coordinator)
    token = None if admin_token_file is None else read_token(admin_token_file)
    trusted = None if trust is None else read_public(trust)
    opened = open_release(release, trusted=trusted)
    place_of_items = items or release.resolve().with_name(f"{release.resolve().name}.items.sqlite")
    store = ItemStore(place_of_items) if token is not None or place_of_items.exists() else None
    service = Service(opened, store=store, embedder_of=_embedder_of, trusted=trusted)

    def announce(url: str) -> None:
        say(f"Serving {opened.name} version {opened.version} at {url}")
        if json_output:
            typer.echo(json.dumps({"address": url, "name": opened.name, "version": opened.version}))

    if not opened.protected:
        why = "; ".join(opened.manifest["why_unprotected"]) or "it says no more"
        service.log.event(f"this release is UNPROTECTED: {why}", level="warning")
    run(service, Settings(rate=rate, admin_token=token, coordinator=other), place, announce)


def _embedder_of(release: Release) -> Embed | None:
    """The released encoder for new items, where what it needs is installed."""
    if find_spec("torch") is None:
        return None
    from veilrec.runs.released import embedder

    return embedder(release)
