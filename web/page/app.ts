/** The page: a front page that learns from clicks, and shows all that leaves. */
import { Client, line, NONE_SENT, NOT_PERSONAL, UnknownKey, type Front, type Manifest, type Mode, type Story } from "../src/index.js";
import { coloured, find, made, picture } from "./dom.js";
import { Learning } from "./learning.js";
import { nameOf, showAccounts, showJournal, showModes, showRead } from "./panel.js";
import { wordsOf, type Words } from "./words.js";

const SHOWN = 13; // one large story and four rows of three
const say = (id: string, text: string): void => {
  find(id).textContent = text;
};

class Page {
  private mode = NONE_SENT;
  private modes: Mode[] = [];
  private busy: Promise<void> = Promise.resolve();
  private opened: Story | null = null;
  private manifest: Manifest | null = null;
  private standing = ""; // what the banner says while all is well
  private words: Words = wordsOf(null);

  constructor(private readonly client: Client) {}

  async start(): Promise<void> {
    await this.about();
    await this.show({ ask: true });
  }

  /** What the release is and offers: at first, and when a newer one came. */
  private async about(): Promise<void> {
    const manifest = await this.client.release();
    if (manifest === this.manifest) return;
    this.manifest = manifest;
    this.words = wordsOf(manifest);
    called(this.words);
    this.modes = await this.client.modes();
    const wanted = await this.client.mode();
    this.mode = this.modes.some((mode) => mode.id === wanted) ? wanted : (this.modes[0]?.id ?? NOT_PERSONAL);
    const { name, version, guarantee, why_unprotected: why } = manifest;
    this.standing = manifest.protected ? "" : `This model is not protected: ${why.join("; ")}`;
    say("release", `Release ${name}, version ${version}, signature checked. Those it learnt from: ${line(guarantee)}.`);
    showModes(this.modes, this.mode, this.words, (mode) => this.chosen(mode));
    this.describe();
  }

  get ranksCatalogue(): boolean {
    return this.manifest?.family === "catalogue";
  }

  warn(message: string): void {
    find("banner").hidden = false;
    find("banner").replaceChildren(made("span", { text: message }));
  }

  /** One thing after another: a click during a fetch waits for it. */
  run(act: () => Promise<void>): Promise<void> {
    this.busy = this.busy.then(act).catch((error: unknown) => this.failed(error));
    return this.busy;
  }

  failed(error: unknown): void {
    const message = error instanceof Error ? error.message : String(error);
    say("status", "");
    this.warn(message.charAt(0).toUpperCase() + message.slice(1));
    if (error instanceof UnknownKey && error.trusted !== "") this.offerTrust(error.key);
    void this.panel();
  }

  private offerTrust(key: string): void {
    const button = made("button", { text: `Trust ${key.slice(0, 16)} from now on` });
    button.type = "button";
    button.addEventListener("click", () => {
      const text = "Only do this if whoever makes the releases told you so. A wrong key can show you wrong things.";
      void sure("Trust another key?", text, "Trust it").then(async (yes) => {
        if (!yes) return;
        await this.client.trust(key);
        location.reload();
      });
    });
    find("banner").append(made("br"), button);
  }

  private chosen(mode: Mode): void {
    const use = find<HTMLButtonElement>("again");
    say("promise", mode.line + ". " + mode.statement.caveats.join(" "));
    if (mode.offer === null) {
      void this.run(() => this.use(mode.id, false));
      return;
    }
    // What costs something waits for a button: arrow keys pass over it.
    use.hidden = mode.id === this.mode;
    use.textContent = "Use this: send one query";
    use.onclick = (): void => void this.confirmed(mode, false);
    if (mode.id === this.mode) this.describe();
  }

  private async confirmed(mode: Mode, again: boolean): Promise<void> {
    const plain = mode.statement.basis === "none";
    if (plain || again) {
      const title = plain ? "Send it without protection?" : "Ask anew, and pay again?";
      const text = plain
        ? "The server gets your interests as they are. After that, no budget can say what it knows of you."
        : `One more query is drawn from what you have read by now, and charged: ${mode.line}.`;
      if (!(await sure(title, text, plain ? "Send it" : "Ask anew"))) return;
    }
    await this.run(() => this.use(mode.id, again));
  }

  private async use(mode: string, again: boolean): Promise<void> {
    this.mode = mode;
    await this.client.setMode(mode);
    this.describe();
    await this.show({ ask: true, again });
  }

  /** What the mode in use promises, and the button that pays for a fresh query. */
  private describe(): void {
    const mode = this.modes.find((each) => each.id === this.mode);
    const button = find<HTMLButtonElement>("again");
    button.hidden = mode === undefined || mode.offer === null;
    if (mode === undefined) return;
    say("promise", `${mode.line}. ${mode.statement.caveats.join(" ")}`);
    button.textContent = "Ask anew, and pay again";
    button.onclick = (): void => void this.confirmed(mode, true);
  }

  async show(how: { ask?: boolean; again?: boolean } = {}): Promise<void> {
    if (how.ask === true) say("status", this.words.fetching);
    const front = await this.client.front(this.mode, SHOWN, how);
    await this.about();
    find("stories").replaceChildren(...front.stories.map((story) => this.card(story, "h2")));
    find("others").replaceChildren(...front.others.map((story) => this.card(story, "h3")));
    find("else").hidden = front.others.length === 0;
    const { warning } = this.client; // of a release that is near its last day
    const standing = [this.standing, warning && `The ${warning}.`].filter((said) => said !== "").join(" ");
    find("banner").hidden = standing === "";
    if (standing !== "") this.warn(standing);
    find("notice").hidden = front.notice === "";
    say("notice", front.notice);
    say("status", described(front, this.words));
    document.documentElement.dataset["ready"] = String(Number(document.documentElement.dataset["ready"] ?? "0") + 1);
    await this.panel();
  }

  async panel(): Promise<void> {
    const asks = this.manifest === null || this.modes.some(({ offer }) => offer !== null);
    showAccounts(await this.client.accounts(), this.words, asks);
    showJournal(await this.client.journal());
    showRead(await this.client.clicks(), this.words);
  }

  private card(story: Story, heading: "h2" | "h3"): HTMLElement {
    const headline = made("button", { class: "headline", text: story.title || story.id });
    headline.type = "button";
    headline.addEventListener("click", () => this.open(story));
    const words = made("div", { class: "words" }, made("p", { class: "category", text: this.named(story.category) }));
    words.append(made(heading, {}, headline));
    if (story.because) words.append(made("p", { class: "because", text: `Because you ${this.words.did} “${shorter(story.because)}”` }));
    const frame = made("div", { class: "picture" });
    frame.setAttribute("aria-hidden", "true");
    frame.append(picture(story.id));
    const card = made("li", { class: "story" }, frame, words);
    card.dataset["category"] = story.category;
    coloured(card, story.category);
    return card;
  }

  private named(category: string): string {
    return category.replaceAll("|", ", ") || this.words.uncategorised;
  }

  private open(story: Story): void {
    this.opened = story;
    const reader = find<HTMLDialogElement>("reader");
    coloured(reader, story.category);
    find("reader-picture").replaceChildren(picture(story.id));
    say("reader-category", this.named(story.category));
    say("reader-title", story.title || story.id);
    say("reader-because", story.because ? `Shown because you ${this.words.did} “${story.because}”` : "");
    void this.run(() => this.client.read(story));
    reader.showModal();
  }

  /** Back from a story: the list at hand is ranked again, and nothing is fetched for it. */
  closed(): void {
    if (this.opened === null) return;
    this.opened = null;
    void this.run(() => this.show()).then(() => find("news").focus());
  }

  async forget(): Promise<void> {
    const text =
      "Removes what you read, and the key that it is encrypted with. What left before cannot be taken back, and what it" +
      " cost stays counted: the ledger and the queries of this period are kept, so that nothing is told twice.";
    if (!(await sure("Forget everything?", text, "Forget"))) return;
    await this.run(async () => {
      await this.client.forget();
      await this.show();
    });
  }
}

function shorter(text: string): string {
  if (text.length <= 46) return text;
  return `${text.slice(0, 44).replace(/\s+\S*$/, "")} …`;
}

function described(front: Front, words: Words): string {
  if (front.mode === NOT_PERSONAL) return `The same list for everybody. ${front.restsOn}`.trim();
  if (!front.personal) return `${words.nothingYet} ${front.restsOn}`.trim();
  const count = front.clicks === 1 ? words.one : `${front.clicks} ${words.many}`;
  return front.restsOn || `Ranked in this browser by ${count} that you ${words.did} (${nameOf(front.mode).toLowerCase()}).`;
}

/** Call things by the names of what this server has. */
function called(words: Words): void {
  document.title = `${words.name} – ${words.motto.charAt(0).toLowerCase()}${words.motto.slice(1)}`;
  const texts = { motto: words.motto, skip: words.skip, "front-title": words.heading, refresh: words.refresh };
  for (const [id, text] of Object.entries(texts)) say(id, text);
  say("read-title", words.didHeading);
  say("reader-body", words.body);
  say("close", words.back);
  find("stories").setAttribute("aria-label", words.list);
}

/** Asks a person; true for yes. */
function sure(title: string, text: string, yes: string): Promise<boolean> {
  const dialog = find<HTMLDialogElement>("sure");
  say("sure-title", title);
  say("sure-text", text);
  say("sure-yes", yes);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

function theme(): void {
  const button = find<HTMLButtonElement>("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = (): boolean => {
    const chosen = document.documentElement.dataset["theme"];
    return chosen === undefined ? system.matches : chosen === "dark";
  };
  const show = (): void => {
    button.setAttribute("aria-pressed", String(dark()));
  };
  const kept = localStorage.getItem("veilrec-theme");
  if (kept === "dark" || kept === "light") document.documentElement.dataset["theme"] = kept;
  button.addEventListener("click", () => {
    const next = dark() ? "light" : "dark";
    document.documentElement.dataset["theme"] = next;
    localStorage.setItem("veilrec-theme", next);
    show();
  });
  system.addEventListener("change", show);
  show();
}

async function main(): Promise<void> {
  theme();
  const client = await Client.open();
  const page = new Page(client);
  find("reader").addEventListener("close", () => page.closed());
  find("refresh").addEventListener("click", () => void page.run(() => page.show({ ask: true })));
  find("forget").addEventListener("click", () => void page.forget());
  await page.run(() => page.start());
  if (page.ranksCatalogue) await new Learning(client, () => page.panel()).start();
}

void main();
