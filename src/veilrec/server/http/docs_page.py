"""The document of the API as a page: one file of HTML and one of style, nothing from elsewhere, no script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

STYLE = b"""
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
section { border-top: 1px solid #8888; padding: 0.5rem 0 }
h2 code { font-size: 1rem }
.method { font-weight: 700; display: inline-block; min-width: 4.5rem }
table { border-collapse: collapse } td { padding: 0.1rem 1rem 0.1rem 0; vertical-align: top }
pre { overflow-x: auto; background: #8882; padding: 0.6rem; border-radius: 4px }
"""


def docs_page(api: Mapping[str, Any]) -> bytes:
    """HTML of an OpenAPI document: routes with their answers, then the bodies."""
    info = api["info"]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<title>{escape(info["title"])}</title><link rel="stylesheet" href="/docs.css"></head><body><main>',
        f"<h1>{escape(info['title'])}</h1><p>{escape(info['description'])}</p>",
        '<p>The same for programs: <a href="/openapi.json">openapi.json</a>.</p>',
    ]
    for path, methods in api["paths"].items():
        shared = methods.get("parameters", [])
        parts += [_operation(path, name, shared, each) for name, each in methods.items() if name != "parameters"]
    for name, schema in api["components"]["schemas"].items():
        text = escape(json.dumps(schema, indent=2, ensure_ascii=False))
        parts.append(f'<section id="{escape(name)}"><h2>{escape(name)}</h2><pre>{text}</pre></section>')
    return ("".join(parts) + "</main></body></html>").encode()


def _operation(path: str, method: str, shared: list[Any], operation: Mapping[str, Any]) -> str:
    rows = []
    for each in [*shared, *operation.get("parameters", [])]:
        about = f"{each['in']}; {each.get('description', 'needed' if each['required'] else '')}"
        rows.append((each["name"], escape(about.strip("; "))))
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        rows.append(("body", f"{escape(kind)} {_link(content)}"))
    for status, answer in operation["responses"].items():
        kinds = " ".join(f"{escape(kind)} {_link(each)}" for kind, each in answer.get("content", {}).items())
        rows.append((status, f"{escape(answer['description'])} {kinds}"))
    table = "".join(f"<tr><td><code>{escape(name)}</code></td><td>{text}</td></tr>" for name, text in rows)
    head = f'<h2><code><span class="method">{method.upper()}</span> {escape(path)}</code></h2>'
    return f"<section>{head}<p>{escape(operation['summary'])}.</p><table>{table}</table></section>"


def _link(content: Mapping[str, Any]) -> str:
    name = content["schema"].get("$ref", "").rpartition("/")[2]
    return f'<a href="#{escape(name)}">{escape(name)}</a>' if name else ""
