"""A page that takes part in a federation, and a coordinator that asks what a test wants and keeps all that comes."""

import json
import ssl
import threading
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.federation.loopback import free_port, known_in
from tests.web.conftest import FILMS, PEOPLE, serving
from veilrec.core.schema import whole_model
from veilrec.federation.coordinator.process import PAGE_HEADERS
from veilrec.federation.facts import FederationFacts
from veilrec.federation.federation import CLIENTS, COORDINATOR, HELPERS, FederationTask
from veilrec.federation.identity import INVITATION, identity_of
from veilrec.federation.making import FederationOptions, make
from veilrec.federation.page import write_page
from veilrec.federation.secagg.helpers import HelperInvitation, Proposal
from veilrec.federation.secagg.terms import RoundKey, public_half
from veilrec.wire import rounds

SENT = """
const m = await import('/web/veilrec.js');
const found = await (await m.Client.open()).federation.participation();
return found.messages.map(each => [each.kind, each.number, m.hex(each.bytes), each.receipt, each.promise]);
"""
SPENT = "return (await (await (await import('/web/veilrec.js')).Client.open()).federation.participation()).spent"
CHARGED = """
const done = (request) => new Promise((resolve) => (request.onsuccess = () => resolve(request.result)));
const database = await done(indexedDB.open("veilrec"));
const kept = await done(database.transaction("ledger").objectStore("ledger").get("federation " + given[0]));
database.close();
return kept?.squaredMu ?? 0;
"""
FLAGS = ("--ignore-certificate-errors",)  # a page has no other way to know the federation's own authority
OFF = """
const { federation } = await (await import('/web/veilrec.js')).Client.open();
while ((await federation.participation()).on) await new Promise((resolve) => setTimeout(resolve, 20));
"""  # returns when the switch is off for every tab
_PATIENCE = 30.0
_NOTHING_TO_DO = 1.0  # seconds until a page that asks is told so


def join(browser, invitation, file):
    """As a person does: the switch, the two things that were handed over, the button."""
    browser.until("return document.getElementById('take-part').checkVisibility()")
    browser.element("#take-part").click()
    browser.until("return document.getElementById('invitation').checkVisibility()")
    browser.element("#invitation").send_keys(invitation.strip())
    browser.element("#federation-file").send_keys(str(file))
    browser.until("return document.getElementById('learning-text').textContent.includes('trusting: server')")
    browser.element("#join").click()


def federation_of(folder, rounds, **wishes):
    """A federation of films that nobody runs yet."""
    usual = {"method": "veil", "data": FILMS, "clients": PEOPLE, "port": free_port()}
    make(folder, FederationOptions(**usual, rounds=rounds, **wishes))
    return folder


def handed(folder, file):
    """What everybody knows of a federation, and what its first client is handed: an invitation and the file."""
    known = known_in(folder)
    write_page(known, file)
    return known, ((min((folder / CLIENTS).iterdir()) / INVITATION).read_text(), file)


def page_of(films, known, log):
    """A server whose page may speak to the coordinator of a federation."""
    return serving(films.release.folder, log, "/readyz", more=("--coordinator", known.federation.address))


def listed(browser):
    """The messages that the panel lists."""
    return browser.js("return [...document.querySelectorAll('#learnt li')].map(e => ({...e.dataset}))")


def says(browser, words):
    """Wait until the panel says something."""
    browser.until("return document.getElementById('learning-status').textContent.includes(arguments[0])", words)


def blocked(browser, *patterns):
    """From now on requests to these go nowhere; without patterns, all go their way again."""
    browser.driver.execute_cdp_cmd("Network.enable", {})
    browser.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": list(patterns)})


@dataclass(frozen=True)
class Answer:
    """What came for a task."""

    kind: str
    number: int
    body: bytes


@dataclass
class Asking:
    """Stands where a coordinator is; every poll that waits gets the task, and answers are kept and acknowledged."""

    known: FederationFacts
    answers: list[Answer] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)  # contents wait for it
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _waiting: int = 0
    _handed: int = 0  # polls that get the task now
    _idle: int = 0  # polls that got none
    _task: FederationTask | None = None
    _content: bytes = b""

    def ask(self, kind, number, *, period=0, tabs=1, content=None):
        """Hand a task to so many tabs at once, each of which has one poll open."""
        self._content = (b"" if kind == "report" else self.model(number)) if content is None else content
        digest = sha256(self._content).hexdigest() if self._content else ""
        with self._changed:
            assert self._changed.wait_for(lambda: self._waiting >= tabs, _PATIENCE), "nobody asks for a task"
            self._task, self._handed = FederationTask(kind, number, period, digest, len(self._content)), self._waiting
            self._changed.notify_all()

    def model(self, number):
        """A round as the plan has it, of a model that nobody has moved yet."""
        plan = self.known.plan
        about = plan.round_planner.next(number, plan.start, None)
        return rounds.encode(about, whole_model(plan.schema, plan.start, number), plan.schema)

    def until(self, done):
        """Wait for answers."""
        with self._changed:
            assert self._changed.wait_for(lambda: done(self.answers), _PATIENCE), f"{len(self.answers)} answers came"

    def polled(self, times):
        """Wait until so many polls were told that there is nothing to do: what was on its way has come by then."""
        with self._changed:
            until = self._idle + times
            assert self._changed.wait_for(lambda: self._idle >= until, _PATIENCE), "nobody asks for a task"

    def answer(self, path, headers, body):
        if path == "/v1/poll":
            return self._poll()
        if path == "/v1/content":
            self.released.wait(_PATIENCE)
            return self._content
        if path == "/v1/answer":
            came = Answer(headers["X-Veilrec-Kind"], int(headers["X-Veilrec-Number"]), body)
            with self._changed:
                known = came in self.answers
                self.answers.append(came)
                self._changed.notify_all()
            return json.dumps({"receipt": "known already" if known else "taken"}).encode()
        return b"{}"

    def _poll(self):
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._handed > 0, _NOTHING_TO_DO)
            self._waiting -= 1
            task, self._handed = (self._task, self._handed - 1) if self._handed else (None, 0)
            self._idle += task is None
            self._changed.notify_all()
        return b"null" if task is None else json.dumps(asdict(replace(task, seconds=10.0))).encode()


def invitation_to(known, terms):
    """To a secure sum, with keys that the helpers of a federation have signed for it."""
    folders = sorted((known.folder / HELPERS).iterdir())
    identities = {key.public.hex(): key for key in map(identity_of, folders)}
    helpers = [identities[each] for each in known.federation.helpers]
    proposal = Proposal(terms, tuple(key.public for key in helpers))
    keys = [
        RoundKey.signed(public_half(X25519PrivateKey.generate()), key, proposal.session, "helper", place)
        for place, key in enumerate(helpers)
    ]
    return HelperInvitation(proposal, tuple(keys), bytes(32)).encode()


@contextmanager
def asking(folder, known, page):
    """Such a coordinator at the address of a federation, for the pages of one origin."""
    made = Asking(known)
    made.released.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_OPTIONS(self):
            self._tell(204, b"")

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._tell(200, made.answer(self.path, self.headers, body))

        def _tell(self, status, content):
            self.send_response(status)
            self.send_header("Access-Control-Allow-Origin", page)
            self.send_header("Access-Control-Allow-Headers", ", ".join(PAGE_HEADERS))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format, *args):
            pass

    place = urlsplit(known.federation.address)
    server = ThreadingHTTPServer((place.hostname or "", place.port or 0), Handler)
    server.daemon_threads, server.handle_error = True, lambda *_: None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / COORDINATOR / "tls.pem", folder / COORDINATOR / "tls.key")
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.released.set()
        server.shutdown()
        server.server_close()
        thread.join(_PATIENCE)
