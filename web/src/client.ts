/**
 * A client in the browser: a history that stays here, a ledger without which nothing leaves, and lists that are ranked
 * here.
 *
 * Requests do not follow clicks: which are sent, and when, depends on the mode and on the page being opened, never on
 * what was read.
 */
import { draw, messageKey, promiseOf, statementOf, type Person } from "./asking.js";
import type { Budget } from "./budget.js";
import { sha256, text, utf8, type Bytes } from "./bytes.js";
import { Catalogue, CATALOGUE_FILES } from "./catalogue.js";
import { UserEncoder } from "./encoder.js";
import { BadInput, BadRelease, BudgetExhausted } from "./errors.js";
import { line, NO_GUARANTEE, NOTHING_SENT, type Guarantee } from "./guarantee.js";
import { History, type Click } from "./history.js";
import { TakingPart } from "./federation.js";
import { Ledger, type AccountReport } from "./ledger.js";
import { decompose } from "./mechanisms.js";
import { NoAnswer, Outbox, type Entry } from "./outbox.js";
import { best, cosine, Pool } from "./pool.js";
import { checkedFile, LARGEST_FILE, verifyRelease, type Envelope, type Manifest, type Offer, type Trust } from "./release.js";
import { doubles, readSafetensors, type Tensors } from "./safetensors.js";
import { SecureSource, type Source } from "./samplers.js";
import { Store } from "./store.js";

const LARGEST_POOL = 1 << 25;
const LARGEST_RELEASE = 1 << 22;
const FEWEST = 100; // news asked for at least: the same number for everybody, so that what was read can be left out here
const NEWS_FILES = ["encoder.safetensors", "serving.safetensors"]; // all that a browser needs of a release
const OTHERS = 9; // of categories that a list has nothing of
const NO_TRUST: Trust = { key: null, newest: {} };

export const NONE_SENT = "none-sent";
export const NOT_PERSONAL = "not-personal";

/** As the client in Python: of one period (a version of the release) and of a lifetime, for all and for one click. */
export const BUDGETS: readonly Budget[] = (
  [
    ["history", 5],
    ["click", 10],
  ] as const
).map(([unit, epsilon]) => ({
  unit,
  adjacency: "replace-one",
  period: { epsilon, delta: 2e-6 },
  lifetime: { epsilon: 4 * epsilon, delta: 8e-6 },
}));

export interface Options {
  readonly server?: string; // where /v1 is; this page's own server if not said
  readonly database?: string; // name in IndexedDB
  readonly budgets?: readonly Budget[]; // only when the ledger is started
  readonly source?: Source; // of noise: for tests only
  readonly onRequest?: () => void; // after each request
}

export interface Mode {
  readonly id: string;
  readonly offer: Offer | null;
  readonly statement: Guarantee;
  readonly line: string;
  readonly bytes: number; // of a message; 0 where nothing is sent
}

export interface Story {
  readonly id: string;
  readonly title: string;
  readonly category: string;
  readonly because: string; // the title of something that was read; empty where nothing like it was
}

export interface Front {
  readonly stories: readonly Story[];
  readonly others: readonly Story[]; // the best of categories that the list has nothing of: a way out of a taste
  readonly mode: string;
  readonly personal: boolean;
  readonly notice: string; // why it is not what was asked for; empty if it is
  readonly clicks: number; // how many the list rests on
  readonly restsOn: string; // in words, where it is the release's own list that was ranked; empty otherwise
}

export interface How {
  readonly ask?: boolean;
  readonly again?: boolean;
  readonly retried?: boolean;
}

/** News of another version than the release at hand. */
class OtherRelease extends BadRelease {}

/** What can be listed: a pool of news, or a catalogue. */
interface Shelf {
  readonly ids: readonly string[];
  readonly titles: readonly string[];
  readonly size: number;
  categoryOf(at: number): string;
}

interface Loaded {
  readonly manifest: Manifest;
  readonly catalogue: Catalogue | null; // where the release is one: all is here, and nothing is asked
  readonly away: boolean; // the server: it is the one that was verified before
  readonly warning: string; // of the last day of the release
  readonly encoder: UserEncoder | null;
  readonly serving: Tensors | null;
  readonly period: string;
  readonly model: string;
}

export class Client {
  private loaded: Loaded | null = null;
  private pools = new Map<string, Pool>();
  private shown = false; // whether there was a list of this catalogue before
  /** Learning with others: off until a person joins, by an invitation. */
  readonly federation: TakingPart;
  private constructor(
    private readonly store: Store,
    private readonly outbox: Outbox,
    private readonly ledger: Ledger,
    private readonly history: History,
    private readonly source: Source,
    onRequest?: () => void,
  ) {
    this.federation = new TakingPart(store, async () => (await history.clicks()).map(({ id }) => id), onRequest);
  }

  static async open(options: Options = {}): Promise<Client> {
    const store = await Store.open(options.database ?? "veilrec");
    const ledger = await Ledger.open(store, options.budgets ?? BUDGETS);
    const outbox = new Outbox(store, options.server ?? "", options.onRequest);
    return new Client(store, outbox, ledger, new History(store), options.source ?? new SecureSource(), options.onRequest);
  }

  // -- the release ---------------------------------------------------------------------------------------------------

  /** The verified release: from the server, or, where that is away, the one that was verified before. */
  async release(): Promise<Manifest> {
    if (this.loaded === null) this.loaded = await this.load();
    return this.loaded.manifest;
  }

  /** What a person has to know of the last day of the release; empty while that is far away. */
  get warning(): string {
    return this.loaded?.warning ?? "";
  }

  /** Trust another key from now on: only ever by a person's own decision. What was spent stays spent. */
  async trust(key: string): Promise<void> {
    await this.store.put("trust", "trust", { key, newest: {} } satisfies Trust);
    this.loaded = null;
    this.pools.clear();
  }

  private async load(retried = false): Promise<Loaded> {
    const trust = (await this.store.get<Trust>("trust", "trust")) ?? NO_TRUST;
    let envelope: Envelope;
    let away = false;
    try {
      const request = { method: "GET", path: "/v1/release", what: "the release", cost: line(NOTHING_SENT) } as const;
      envelope = JSON.parse(text(await this.outbox.send({ ...request, most: LARGEST_RELEASE }))) as Envelope;
    } catch (error) {
      const kept = await this.store.get<Envelope>("release", "envelope");
      if (!(error instanceof NoAnswer && error.away) || kept === undefined) throw error;
      [envelope, away] = [kept, true];
    }
    const verified = await verifyRelease(envelope, trust);
    const { manifest } = verified;
    const paths = manifest.family === "catalogue" ? CATALOGUE_FILES : NEWS_FILES;
    let files: (Bytes | null)[];
    try {
      files = await Promise.all(paths.map((path) => this.file(manifest, path)));
    } catch (error) {
      if (!(error instanceof NoAnswer && error.status === 404) || retried) throw error;
      return this.load(true); // a newer release came in between: its files are other ones
    }
    const [first, second] = files as [Bytes | null, Bytes | null];
    await this.store.change(["trust", "release"], async (change) => {
      const now = (await change.get<Trust>("trust", "trust")) ?? NO_TRUST; // another tab may have seen a newer one
      if ((now.newest[manifest.name]?.version ?? 0) > manifest.version || (now.key !== trust.key && now.key !== verified.trust.key))
        throw new BadRelease("a newer release, or another key, came in between: reload the page");
      change.put("trust", "trust", verified.trust);
      change.put("release", "envelope", envelope);
      const wanted = new Set(["envelope", ...paths.map((path) => manifest.files[path]?.sha256)]);
      for (const key of await change.keys("release")) if (!wanted.has(key)) change.delete("release", key);
    });
    const [program, news] = [manifest.encoder, manifest.family !== "catalogue"];
    return {
      manifest,
      away,
      warning: verified.warning,
      catalogue: !news && first && second ? Catalogue.read(manifest, first, second) : null,
      encoder: program !== null && "user" in program && first ? new UserEncoder(program, readSafetensors(first)) : null,
      serving: news && second ? readSafetensors(second) : null,
      period: `${manifest.name} ${manifest.version}`,
      model: manifest.files["encoder.safetensors"]?.sha256 ?? manifest.files["vectors.safetensors"]?.sha256 ?? "",
    };
  }

  private async file(manifest: Manifest, path: string): Promise<Bytes | null> {
    const entry = Object.hasOwn(manifest.files, path) ? manifest.files[path] : undefined;
    if (entry === undefined) return null;
    if (entry.bytes > LARGEST_FILE)
      throw new BadRelease(`${path} of the release has ${entry.bytes} bytes: at most ${LARGEST_FILE} are fetched`);
    const kept = await this.store.get<Bytes>("release", entry.sha256);
    if (kept !== undefined && (await sha256(kept)) === entry.sha256) return kept; // one that was damaged is fetched again
    const request = { method: "GET", path: `/v1/release/files/${entry.sha256}/${path}`, what: "a file of the release" } as const;
    const content = await this.outbox.send({ ...request, cost: line(NOTHING_SENT), most: entry.bytes });
    await checkedFile(manifest, path, content);
    await this.store.put("release", entry.sha256, content);
    return content;
  }

  /** The ways to get a list: send nothing, each private query that the release offers, and nothing personal. */
  async modes(): Promise<Mode[]> {
    const { offers } = await this.release();
    const fixed = (id: string): Mode => ({ id, offer: null, statement: NOTHING_SENT, line: line(NOTHING_SENT), bytes: 0 });
    const found = this.ranksHere ? [fixed(NONE_SENT)] : [];
    for (const offer of this.ranksHere ? offers : []) {
      try {
        const statement = statementOf(offer);
        const bytes = 7 + (offer.kind === "interest" ? 2 : 4 * offer.size);
        found.push({ id: offer.mode, offer, statement, line: line(statement), bytes });
      } catch (error) {
        if (!(error instanceof BadInput)) throw error; // an offer whose noise does not keep its word is none
      }
    }
    return [...found, fixed(NOT_PERSONAL)];
  }

  private get ranksHere(): boolean {
    return this.loaded?.catalogue !== null || (this.loaded.encoder !== null && this.loaded.serving !== null);
  }

  // -- reading and forgetting ----------------------------------------------------------------------------------------

  /** Something was read. Nothing is sent, now or later, that says what. */
  async read(story: Story): Promise<void> {
    const model = this.loaded?.model ?? "";
    let vector: Float64Array = new Float64Array(0);
    for (const pool of this.pools.values()) {
      const at = pool.ids.indexOf(story.id);
      if (at >= 0) vector = pool.vector(at);
    }
    await this.history.add({ id: story.id, title: story.title, category: story.category, model, vector });
  }

  /** What was read, oldest first. */
  clicks(): Promise<Click[]> {
    return this.history.clicks();
  }

  /** Forget what was read, completely. What left before has left, and what it cost stays in the ledger. */
  async forget(): Promise<void> {
    await this.history.forget();
  }

  // -- what left -----------------------------------------------------------------------------------------------------

  /** Every request, newest first. */
  journal(): Promise<Entry[]> {
    return this.outbox.journal();
  }

  /** What was spent, in this period and ever. */
  accounts(): Promise<AccountReport[]> {
    return this.ledger.report(this.loaded?.period ?? "");
  }

  // -- lists ---------------------------------------------------------------------------------------------------------

  /** The mode that was chosen last. */
  async mode(): Promise<string> {
    return (await this.store.get<string>("settings", "mode")) ?? NONE_SENT;
  }

  setMode(mode: string): Promise<void> {
    return this.store.put("settings", "mode", mode);
  }

  /**
   * The front page in a mode. `ask`: fetch news, otherwise those at hand are ranked again (after a click). `again`: draw
   * and pay for one more query; only ever by a person's own decision.
   */
  async front(mode: string, count: number, how: How = {}): Promise<Front> {
    await this.release();
    const known = await this.modes();
    if ((this.loaded as Loaded).manifest.family === "ranker")
      throw new BadRelease("This release is ranked by clients in Python alone (veilrec query): there is no list for a browser.");
    const wanted = known.find((each) => each.id === mode);
    if (this.loaded?.catalogue) return this.ofCatalogue(wanted === undefined ? NOT_PERSONAL : mode, count, how);
    let [actual, notice] = wanted === undefined ? [NOT_PERSONAL, `This release does not offer ${mode}.`] : [mode, ""];
    if (!this.ranksHere) notice = "Personal lists of this release are made by clients in Python: here it is everybody's.";
    let pool = how.ask === true ? undefined : this.pools.get(actual);
    let charge = "";
    try {
      pool ??= await this.fetched(actual, how.again ?? false);
    } catch (error) {
      if (error instanceof OtherRelease && !how.retried) {
        this.loaded = null; // a newer one came while the page was open
        this.pools.clear();
        return this.front(mode, count, { ask: true, retried: true });
      }
      if (error instanceof BudgetExhausted) {
        notice = "The privacy budget of this period is spent, so the list is not personal.";
        actual = NOT_PERSONAL;
        // If possible from what is here, so that nobody learns who has run out of budget.
        pool = (await this.kept(actual)) ?? (await this.fetched(actual, false).catch(() => undefined));
      } else if (error instanceof NoAnswer && error.away) {
        charge = chargedWithoutAnswer(error);
        notice = `The server is away: these are the last news.${charge}`;
      } else throw error;
    }
    if (pool === undefined) {
      notice ||= "The server is away: these are the last news.";
      pool = await this.kept(actual);
    }
    if (pool === undefined) throw new NoAnswer(`The server is away, and no news were fetched before.${charge}`, 0);
    this.pools.set(mode, pool);
    return this.ranked(pool, actual, count, notice);
  }

  private async ranked(pool: Pool, mode: string, count: number, notice: string): Promise<Front> {
    const clicks = await this.history.clicks();
    const read = new Set(clicks.map((click) => click.id));
    const personal = mode !== NOT_PERSONAL;
    const person = personal ? this.person(this.known(clicks)) : null;
    const scores = person === null ? this.forAnybody(pool) : this.scores(pool, person);
    const like = person === null ? [] : this.known(clicks).slice(-20);
    const shown = laidOut(pool, best(scores, pool.ids, read, pool.size), count, (at) => likest(pool.vector(at), like));
    return { ...shown, mode, personal: personal && like.length > 0, notice, clicks: like.length, restsOn: "" };
  }

  /** The list of a catalogue, all of which is here: `ask` looks for a newer release, and nothing else is ever fetched. */
  private async ofCatalogue(mode: string, count: number, how: How): Promise<Front> {
    if (how.ask === true && this.shown) {
      const [now, found] = [this.loaded as Loaded, await this.load()];
      this.loaded = found.period === now.period ? { ...now, away: found.away, warning: found.warning } : found; // the same has its tables ready
      if (found.catalogue === null) return this.front(mode, count, how);
    }
    this.shown = true;
    const { catalogue, away } = this.loaded as Loaded & { catalogue: Catalogue };
    const clicks = await this.history.clicks();
    const history = mode === NOT_PERSONAL ? [] : catalogue.known(clicks.map(({ id }) => id));
    const order = best(catalogue.scores(history), catalogue.ids, new Set(clicks.map(({ id }) => id)), catalogue.size);
    const recent = history.slice(-20);
    const shown = laidOut(catalogue, order, count, (at) => {
      const like = catalogue.likest(at, recent);
      return like === null ? "" : (catalogue.titles[like] as string);
    });
    const notice = away ? "The server is away: this is the last release." : "";
    const restsOn = catalogue.restsOn(history);
    return { ...shown, mode, personal: history.length > 0, notice, clicks: history.length, restsOn };
  }

  /** Clicks with a vector of this model; after a new model, those whose news are at hand. */
  private known(clicks: readonly Click[]): Click[] {
    const { model, manifest } = this.loaded as Loaded;
    const found: Click[] = [];
    for (const click of clicks) {
      if (click.model === model && click.vector.length === manifest.sizes.dim) {
        found.push(click);
        continue;
      }
      for (const pool of this.pools.values()) {
        const at = pool.ids.indexOf(click.id);
        if (at < 0) continue;
        found.push({ ...click, model, vector: pool.vector(at) });
        break;
      }
    }
    return found;
  }

  private person(clicks: readonly Click[]): Person {
    const { encoder, serving } = this.loaded as Loaded;
    if (encoder === null) throw new BadRelease("the release has no encoder: lists are not personal here");
    const vectors = clicks.map((click) => click.vector);
    const user = encoder.user(vectors);
    const alpha = encoder.basis === null ? null : decompose(user, encoder.basis);
    if (alpha === null || serving === null || encoder.program.ranks_with === "whole") return { user, alpha, clicks: vectors };
    const interests = doubles(serving, "interests", [alpha.length, user.length]);
    const ranking = user.map((_, q) => alpha.reduce((sum, share, b) => sum + share * (interests[b * user.length + q] ?? 0), 0));
    return { user, ranking, alpha, clicks: vectors };
  }

  private scores(pool: Pool, person: Person): Float64Array {
    const { encoder } = this.loaded as Loaded;
    if (encoder?.program.ranks_with === "interests" && person.alpha !== null) return pool.byAttention(person.alpha);
    return pool.byVector(person.user);
  }

  /** The order for somebody without a history; that of the pool where the release says nothing of it. */
  private forAnybody(pool: Pool): Float64Array {
    const serving = this.loaded?.serving ?? null;
    if (serving?.tensors.has("nobody") && pool.dim) return pool.byVector(doubles(serving, "nobody", [pool.dim]));
    return new Float64Array(pool.size);
  }

  // -- asking --------------------------------------------------------------------------------------------------------

  private async fetched(mode: string, again: boolean): Promise<Pool> {
    const offer = (this.loaded as Loaded).manifest.offers.find((each) => each.mode === mode);
    let content: Bytes;
    if (mode === NONE_SENT) {
      const request = { method: "GET", path: "/v1/pool", what: "the news that everybody gets" } as const;
      content = await patiently(() => this.outbox.send({ ...request, cost: line(NOTHING_SENT), most: LARGEST_POOL }));
    } else if (offer === undefined || mode === NOT_PERSONAL) {
      const body = utf8(JSON.stringify({ k: FEWEST }));
      const request = { method: "POST", path: "/v1/recommend?form=pool", type: "application/json", body } as const;
      const what = "the list that everybody gets";
      content = await this.outbox.send({ ...request, what, cost: line(NOTHING_SENT), most: LARGEST_POOL });
    } else content = await this.asked(offer, again);
    const pool = Pool.read(content);
    const { period } = this.loaded as Loaded;
    if (pool.release !== period) throw new OtherRelease(`the news are of ${pool.release}, and the release is ${period}`);
    await this.store.put("pools", mode, content);
    return pool;
  }

  /** Send the query of this period: charged on disk first, and only then on its way. */
  private async asked(offer: Offer, again: boolean): Promise<Bytes> {
    const { manifest, serving, period, model } = this.loaded as Loaded;
    // A new model needs new vectors of old clicks: whoever was here before fetches the news, with or without clicks.
    const before = await this.store.get<string>("settings", "model");
    if (before !== undefined && before !== model && !this.pools.has(NONE_SENT))
      this.pools.set(NONE_SENT, await this.fetched(NONE_SENT, false));
    await this.store.put("settings", "model", model);
    const clicks = this.known(await this.history.clicks());
    const person = this.person(clicks);
    const made = (): Bytes => draw(offer, person, serving as Tensors, this.source);
    const message = await this.ledger.message(messageKey(manifest, offer), period, promiseOf(offer), made, again);
    const statement = offer.mode === "plain" ? NO_GUARANTEE : statementOf(offer);
    return this.outbox.send({
      method: "POST",
      path: asks(offer.pool ?? FEWEST),
      type: "application/octet-stream",
      body: message.bytes,
      what: message.fresh ? `a private query (${offer.mode})` : `the same private query again (${offer.mode})`,
      cost: line(statement),
      charged: message.fresh,
      most: LARGEST_POOL,
    });
  }

  private async kept(mode: string): Promise<Pool | undefined> {
    const { period } = this.loaded as Loaded;
    for (const key of [mode, NONE_SENT, NOT_PERSONAL]) {
      const content = await this.store.get<Bytes>("pools", key);
      if (content === undefined) continue;
      const pool = Pool.read(content);
      if (pool.release === period) return pool;
    }
    return undefined;
  }
}

/** The best, and of the others the best of categories that those have nothing of. */
function laidOut(shelf: Shelf, order: readonly number[], count: number, because: (at: number) => string): Pick<Front, "stories" | "others"> {
  const story = (at: number, why: string): Story => {
    return { id: shelf.ids[at] as string, title: shelf.titles[at] as string, category: shelf.categoryOf(at), because: why };
  };
  const stories = order.slice(0, count).map((at) => story(at, because(at)));
  const shown = new Set(stories.map(({ category }) => category));
  const others: Story[] = [];
  for (const at of order.slice(count)) {
    if (others.length === OTHERS) break;
    if (shown.has(shelf.categoryOf(at))) continue;
    shown.add(shelf.categoryOf(at));
    others.push(story(at, ""));
  }
  return { stories, others };
}

/**
 * What a person must know of a query that got no answer: that it was sent, or may have been, and what it cost. The ledger
 * keeps the charge, since the server may have read the query; the same query is sent again for free.
 */
function chargedWithoutAnswer({ status, charged }: NoAnswer): string {
  if (charged === "") return "";
  const sent = status === 0 ? "may have been sent" : "was sent";
  return ` A private query ${sent} and its epsilon was charged (${charged}); repeating this query costs nothing more.`;
}

/** A server that has just started has no pool yet: wait for it a little. */
async function patiently<T>(act: () => Promise<T>): Promise<T> {
  for (let wait = 250; ; wait *= 2) {
    try {
      return await act();
    } catch (error) {
      if (!(error instanceof NoAnswer) || error.status !== 503 || wait > 4000) throw error;
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }
}

function asks(count: number): string {
  return `/v1/recommend?k=${Math.min(Math.max(count, 1), 1000)}&form=pool`;
}

/** The title of the click that a story is most like, if it is like any. */
function likest(vector: Float64Array, clicks: readonly Click[]): string {
  let [title, most] = ["", 0.3];
  for (const click of clicks) {
    const near = cosine(vector, click.vector);
    if (near > most) [title, most] = [click.title, near];
  }
  return title;
}
