"""Read a page as a browser does: its elements, links and words."""

import re
from html.parser import HTMLParser

_VOID = frozenset({"meta", "link", "br", "img"})
_LINKS = frozenset({"src", "href", "xlink:href", "data"})
_ACTIVE = frozenset({"script", "link", "img", "iframe", "object", "form"})


class Reader(HTMLParser):
    """The elements, attributes and text of a page; every element has to be closed where it should be."""

    def __init__(self, page):
        super().__init__()
        self.tags = set()
        self.attributes = []
        self.words = ""
        self._open = []
        self.feed(page)
        self.close()
        assert self._open == []
        ids = [value for name, value in self.attributes if name == "id"]
        assert len(ids) == len(set(ids))

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] != "style":
            self.words += " " + data


def assert_loads_nothing(page):
    """A page that is whole, runs nothing, and asks no other server."""
    reader = Reader(page)
    assert not _ACTIVE & reader.tags
    assert all((value or "").startswith("#") for name, value in reader.attributes if name in _LINKS)
    assert not {"onload", "onclick"} & {name for name, _ in reader.attributes}
    assert not re.search(r"@import|url\((?!#)", page)
    return reader
