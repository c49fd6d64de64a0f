"""The document of the API: every route is in it, and the page shows it."""

from __future__ import annotations

import re

from tests.serving.toys import Asked
from veilrec.serving.app import Routes, Settings
from veilrec.serving.middleware import Metrics

_PAGES = {"/", "/web/{path}", "/docs", "/docs.css"}


def test_every_route_is_in_the_document(ask: Asked) -> None:
    api = ask("GET", "/openapi.json").json
    assert api["openapi"] == "3.1.0"
    routes = Routes(ask.service, Settings(), Metrics()).all()
    declared = {(route.path_format, method) for route in routes for method in (route.methods or set()) - {"HEAD"}}
    declared = {(path, method) for path, method in declared if path not in _PAGES}
    written = {(path, name.upper()) for path, each in api["paths"].items() for name in each if name != "parameters"}
    assert written == declared


def test_all_references_lead_somewhere_and_bodies_refuse_what_is_unknown(ask: Asked) -> None:
    got = ask("GET", "/openapi.json")
    schemas = got.json["components"]["schemas"]
    assert set(re.findall(r'"#/components/schemas/(\w+)"', got.body.decode())) <= set(schemas)
    assert schemas["RecommendRequest"]["additionalProperties"] is False
    assert schemas["NewItem"]["additionalProperties"] is False
    assert schemas["NewItem"]["required"] == ["title"]


def test_the_page_of_the_routes_needs_nothing_from_elsewhere(ask: Asked) -> None:
    page = ask("GET", "/docs").body.decode()
    for path in ask("GET", "/openapi.json").json["paths"]:
        assert path in page
    assert re.findall(r'(?:src|href)="([^"#]+)"', page) == ["/docs.css", "/openapi.json"]
    assert ask("GET", "/docs.css").headers["content-type"].startswith("text/css")
