/** A client of a federation of `veil`, as its public file says: what it answers, and what that costs (federate/page.py). */
import { fromHex, sha256, text, type Bytes } from "./bytes.js";
import { learningStream } from "./draws.js";
import { BadInput, Declined } from "./errors.js";
import { checkSecureSums, parted, type SecureSums } from "./helpers.js";
import { latticeDelta, line, type Adjacency, type Guarantee, type Unit } from "./guarantee.js";
import { decodeRound, encodeMessage, encodeReport, sizeOf, type TensorShape } from "./rounds.js";
import { doubles, readSafetensors, shapeOf, texts } from "./safetensors.js";
import { VeilRanking, type Reading } from "./veil.js";
import { Content } from "./veil_content.js";
import { Among, bothPlaces, placed, unknownPlaces, type Places } from "./veil_places.js";

const FORMAT = 3;
const MOST_ITEMS = 1_000_000;
const LARGEST = 2 ** 60; // its square is still a number in single precision
const BELOW = 1 - 1e-6; // so that rounding makes no message longer than its bound
const SLACK = 1 - 1e-9;
const PASSES = ["places", "further"] as const; // where items are used: among content, and among what those said

/** What the file says, in words. */
export interface AboutFederation {
  readonly format: number;
  readonly id: string;
  readonly address: string;
  readonly plan: string;
  readonly method: string;
  readonly dataset: string;
  readonly rounds: number;
  readonly clients: number;
  readonly guarantee: Guarantee;
  readonly largest_content: number;
  readonly tensors: readonly TensorShape[];
  readonly reading: Reading;
  readonly units: Readonly<Record<string, number>>;
  readonly shares: Readonly<Record<string, number>>;
  readonly clips: Readonly<Record<string, number>>;
  readonly noise: Readonly<Record<string, number>>; // standard deviation, in units, on sums that clients estimate from
  readonly unit: Unit;
  readonly adjacency: Adjacency;
  readonly delta: number;
  readonly bounds: readonly number[];
  readonly asked: readonly (readonly string[])[]; // the tensors that each round is about, in the model's order
  readonly sigma: number;
  readonly sigma_of_votes: number;
  readonly mu_of_report: number;
  readonly mu_of_rounds: readonly number[];
  readonly secure_sums?: SecureSums | null; // null: the coordinator sees every message
}

/** What a round is answered with, in the open or as the whole numbers that are added up under masks. */
export interface Answer {
  readonly tensors: readonly string[]; // that it is about
  message(): Bytes;
  numbers(): BigInt64Array;
}

/** By the tensor that it is about. */
interface ToSay {
  readonly places: Float64Array; // [items, directions]
  readonly further: Float64Array; // likewise
  readonly weights: Float64Array; // [features]
  readonly map: Float64Array; // [tastes, width]
}

export class FederationFile {
  private readonly byId: ReadonlyMap<string, number>; // of the items, by their ids
  private constructor(
    readonly about: AboutFederation,
    readonly ids: readonly string[],
    private readonly content: Content,
    private readonly whitening: Float64Array,
  ) {
    this.byId = new Map(ids.map((id, at) => [id, at]));
  }

  /**
   * Read a public file, and check that it is the one that an invitation names by its digest: first comes what everybody
   * of the federation has agreed on, then the coordinator's address, and then what browsers act on, whose digest is a
   * part of the first.
   */
  static async agreed(bytes: Bytes, pin: string): Promise<FederationFile> {
    const file = FederationFile.read(bytes);
    const [agreed, rest] = parted(bytes);
    const [, acted] = parted(rest);
    if ((await sha256(agreed)) !== pin) throw wrong("another federation than the one that the invitation is to");
    checkAgreed(agreed, await sha256(acted), file.about);
    return file;
  }

  static read(bytes: Bytes): FederationFile {
    const [address, acted] = parted(parted(bytes)[1]);
    const file = readSafetensors(acted);
    const about = { ...parsed(file.metadata.get("federation")), address: text(address) };
    checkAbout(about);
    const ids = texts(file, "ids");
    if (ids.length === 0 || ids.length > MOST_ITEMS || new Set(ids).size !== ids.length) throw wrong("its items");
    const content = Content.read(file, ids.length);
    const [features = 0] = shapeOf(file, "whitening");
    const made = new FederationFile(about, ids, content, doubles(file, "whitening", [features, features]));
    made.checkShapes(features);
    return made;
  }

  private checkShapes(features: number): void {
    const { tensors, reading } = this.about;
    const { directions, width } = this;
    const items = this.ids.length;
    const expected: Record<string, readonly number[]> = {
      votes: [items, 1],
      popularity: [items, 2],
      ...Object.fromEntries(this.passes.map((name) => [name, [items, directions]])),
      weights: [features],
      map: [1 + reading.taste_recency.length * width, width],
    };
    const made = 3 + reading.popularity_recency.length + this.content.size * reading.recency.length;
    const fits = tensors.every(({ name, shape, by_row, learnt }) => {
      const known = Object.hasOwn(expected, name) ? expected[name] : undefined;
      const table = name === "votes" || name === "popularity";
      return known !== undefined && String(known) === String(shape) && by_row === table && learnt === !table;
    });
    const passes = Math.max(this.passes.length, 1);
    const inOrder = this.passes.every((name, at) => name === PASSES[at]) && (reading.place_passes ?? 1) === passes;
    if (!fits || !inOrder || features !== made || !["votes", "popularity", "weights"].every((name) => tensors.some((t) => t.name === name))) throw wrong("its model");
  }

  /** The tensors of places, each learnt after the one before. */
  private get passes(): readonly (typeof PASSES)[number][] {
    return PASSES.filter((pass) => this.about.tensors.some(({ name }) => name === pass));
  }

  /** Along which places of items are learnt in one pass; 0 where none are. */
  private get directions(): number {
    const [, directions = 0] = this.about.tensors.find(({ name }) => name === "places")?.shape ?? [];
    return Math.min(directions, this.content.width); // a shape with more of them is refused
  }

  /** Of the space that the map is over: content, and places beyond it. */
  private get width(): number {
    return this.content.width + this.passes.length * this.directions;
  }

  /** Where items of some ids are, in the same order; those that the federation does not know are left out. */
  known(ids: readonly string[]): number[] {
    return ids.map((id) => this.byId.get(id)).filter((at) => at !== undefined);
  }

  message(content: Bytes, number: number, history: readonly number[], seed: bigint, client = 0): Bytes {
    return this.answer(content, number, history, seed, client).message();
  }

  /** The answer to a round, as long as the round's bound at most; also of an empty history, because silence would tell. */
  answer(content: Bytes, number: number, history: readonly number[], seed: bigint, client = 0): Answer {
    const { about } = this;
    const own = about.bounds[number];
    if (own === undefined) throw new BadInput(`round ${number} is beyond the last of this federation: it is not answered`);
    const { clipNorm, asked, tensors } = decodeRound(content, about.tensors, number);
    if (clipNorm !== own || !sameNames(asked, about.asked[number] as readonly string[]))
      throw new Declined("another plan", "the round asks for something else than the plan: it is not answered");
    const bound = own;
    const found = this.toSay(asked, tensors, history, learningStream(seed, client));
    const whole = asked.reduce((sum, name) => sum + (about.shares[name] as number), 0);
    const parts = asked.map((name) => {
      const length = bound * Math.sqrt((about.shares[name] as number) / whole);
      return [name, cut(found[name as keyof ToSay], about.clips[name] as number, length)] as const;
    });
    const view = about.tensors.filter(({ name }) => asked.includes(name)); // answers number their own tensors
    const within = new Map(bounded(parts, bound));
    const [names, most] = [view.map(({ name }) => name), about.secure_sums?.max_clients ?? 1];
    return {
      tensors: names,
      message: () => encodeMessage(within, view, number),
      numbers: () => onLattice(names.flatMap((name) => [...(within.get(name) as Float32Array)]), bound, most),
    };
  }

  /** What the own history has to say to a round, of any length. */
  private toSay(asked: readonly string[], tensors: ReadonlyMap<string, Float32Array>, history: readonly number[], draws: bigint): ToSay {
    const { content, about, whitening } = this;
    const { reading } = about;
    const [none, known] = [new Float64Array(0), this.placesIn(tensors)];
    const told = (name: string, table: Float32Array): Float64Array =>
      asked.includes(name) ? new Among(table, content.items, this.directions, reading.place_recency).told(history) : none;
    const [places, further] = [told("places", content.basis), told("further", known.values)];
    if (!asked.some((name) => name === "weights" || name === "map")) return { places, further, weights: none, map: none };
    const size = Math.sqrt(whitening.length);
    const weights = this.inUnits(tensors, "weights", size);
    const learnt = {
      popularity: Float64Array.from(tensors.get("popularity") ?? []),
      weights: weights.map((_, f) => weights.reduce((sum, value, g) => sum + value * (whitening[f * size + g] as number), 0)),
      map: this.inUnits(tensors, "map", (1 + reading.taste_recency.length * this.width) * this.width),
      places: known,
    };
    return { places, further, ...VeilRanking.learning(content, reading, whitening, learnt, draws).gradients(history) };
  }

  /** Where items lie beyond their content, as the sums of a round say; before they were released nothing is known. */
  private placesIn(tensors: ReadonlyMap<string, Float32Array>): Places {
    const { directions, content } = this;
    const popularity = tensors.get("popularity") as Float32Array;
    const votes = Float64Array.from({ length: content.items }, (_, item) => Math.exp(popularity[2 * item] as number));
    return this.passes.reduce((before, name) => {
      const known = tensors.get(name)?.some((value) => value !== 0);
      const noise = this.about.noise[name] as number;
      const said = known ? placed(this.inUnits(tensors, name, 0), directions, noise, votes, content, before) : unknownPlaces(content.items, directions);
      return bothPlaces(before, said, content.items);
    }, unknownPlaces(content.items, 0));
  }

  report(number: number, history: readonly number[]): Bytes {
    return encodeReport(history, this.ids.length, number);
  }

  /** The vote that a server would make of the report, in steps of 2^-24: all of it together is at most one (votes.py). */
  votes(history: readonly number[]): BigInt64Array {
    const once = new Set(history);
    const each = BigInt(Math.floor(Math.sqrt(Math.floor(2 ** 48 / Math.max(once.size, 1)))));
    const out = new BigInt64Array(this.ids.length);
    for (const item of once) out[item] = each;
    return out;
  }

  get trust(): string {
    return this.about.secure_sums ? "server sees only sums" : "server";
  }

  private inUnits(tensors: ReadonlyMap<string, Float32Array>, name: string, size: number): Float64Array {
    const unit = Math.fround(this.about.units[name] ?? 0);
    return Float64Array.from(tensors.get(name) ?? new Float32Array(size), (value) => Math.fround(value * unit));
  }

  /** mu of a message, as ledgers count it. */
  cost(kind: "report" | "round", number: number): number {
    const { mu_of_report, mu_of_rounds } = this.about;
    return kind === "report" ? mu_of_report : (mu_of_rounds[number] ?? Infinity);
  }

  /** Squared mu of all that this federation will ever ask. */
  get limit(): number {
    return this.about.mu_of_rounds.reduce((sum, mu) => sum + mu * mu, this.about.mu_of_report ** 2);
  }

  /** What messages of this squared mu promise together. */
  statement(squared: number, scope: string): Guarantee {
    const { unit, adjacency, delta } = this.about;
    const epsilon = squared > 0 ? epsilonOf(Math.sqrt(squared), delta, this.dimension) : 0;
    return { basis: "proven", unit, adjacency, epsilon, delta: squared > 0 ? delta : 0, scope, trust: this.trust, caveats: [] };
  }

  /** Numbers that noise is drawn for, in all rounds and for the votes. */
  private get dimension(): number {
    const { tensors, rounds } = this.about;
    return this.ids.length + rounds * tensors.reduce((sum, tensor) => sum + (tensor.learnt ? sizeOf(tensor) : 0), 0);
  }

  line(squared: number, scope: string): string {
    return line(this.statement(squared, scope));
  }
}

/** Numbers up to a bound as whole ones, cut towards 0: so large that the sum of so many clients fits (lattice.py). */
export function onLattice(values: readonly number[], bound: number, clients: number): BigInt64Array {
  const most = 2 ** (62 - exponentAbove(clients));
  const perStep = most / 2 ** exponentAbove(bound);
  return BigInt64Array.from(values, (value) => BigInt(Math.trunc(Math.min(Math.max(value * perStep, -most), most))));
}

/** Of the smallest power of two that is at least this. */
function exponentAbove(value: number): number {
  let exponent = Math.round(Math.log2(value)) - 1;
  while (2 ** exponent < value) exponent++;
  return exponent;
}

function sameNames(some: readonly string[], others: readonly string[]): boolean {
  return some.length === others.length && some.every((name, at) => name === others[at]);
}

function wrong(what: string): BadInput {
  return new BadInput(`this is not the public file of a federation that a page can take part in (${what}): ask whoever runs it for the one of \`veilrec federate page\``);
}

function parsed(content: string | undefined): AboutFederation {
  try {
    const found: unknown = JSON.parse(content ?? "");
    if (typeof found === "object" && found !== null) return found as AboutFederation;
  } catch {
    // as below
  }
  throw wrong("it says nothing of itself");
}

/** A client believes no promise that its noise does not keep: what a message moves a sum by, over the noise, is mu at least. */
/** Refuse a file whose parts do not belong together, or say other things than what was agreed on. */
function checkAgreed(agreed: Bytes, page: string, { id, rounds, clients, plan, secure_sums }: AboutFederation): void {
  const found = JSON.parse(text(agreed)) as Record<string, unknown>;
  const own: Record<string, unknown> = { id, rounds, clients, plan, page };
  if (Object.entries(own).some(([name, value]) => found[name] !== value)) throw wrong("something else than what was agreed on");
  const { helpers, least } = secure_sums ?? { helpers: [], least: found["least"] };
  if (found["secagg"] !== (secure_sums ? "helpers" : "none") || found["least"] !== least || String(found["helpers"]) !== String(helpers))
    throw wrong("something else than what was agreed on");
}

function checkAbout(about: AboutFederation): void {
  const { bounds, mu_of_rounds, sigma, sigma_of_votes, mu_of_report, rounds, delta, tensors, adjacency } = about;
  if (about.format !== FORMAT || about.method !== "veil") throw wrong("another format");
  if (fromHex(about.id).length !== 16 || !/^https:\/\/[a-z0-9.:[\]-]+$/.test(about.address)) throw wrong("its address");
  const lists = [bounds, mu_of_rounds].every((list) => Array.isArray(list) && list.length === rounds && list.every((value) => value > 0 && value < Infinity));
  if (!lists || ![sigma, sigma_of_votes, mu_of_report].every((value) => value > 0 && value < Infinity) || !(delta > 0 && delta < 1)) throw wrong("its noise");
  if (!Array.isArray(tensors) || !Number.isSafeInteger(about.largest_content) || about.unit !== "user") throw wrong("its model");
  const names = tensors.filter(({ learnt }) => learnt).map(({ name }) => name);
  const inOrder = (asked: readonly string[]) => Array.isArray(asked) && asked.length > 0 && sameNames(asked, names.filter((name) => asked.includes(name)));
  if (!Array.isArray(about.asked) || about.asked.length !== rounds || !about.asked.every(inOrder)) throw wrong("its rounds");
  for (const name of names)
    if (![about.units[name], about.shares[name], about.clips[name]].every((value) => value !== undefined && value > 0 && value < Infinity)) throw wrong("its model");
  if (PASSES.some((pass) => tensors.some(({ name }) => name === pass) && !((about.noise?.[pass] as number) >= 0))) throw wrong("its noise");
  if (about.secure_sums && !checkSecureSums(about.secure_sums, about.clients)) throw wrong("its secure sums");
  const [replaced, votes] = adjacency === "replace-one" ? [2, Math.SQRT2] : [1, 1];
  const kept = bounds.every((bound, at) => (mu_of_rounds[at] as number) >= ((replaced * bound) / sigma) * SLACK);
  if (!kept || !(mu_of_report >= (votes / sigma_of_votes) * SLACK)) throw wrong("its noise does not keep what it promises");
}

/** Gradients of length `clip` or more become `length` long, shorter ones in proportion. */
function cut(gradient: Float64Array, clip: number, length: number): Float32Array {
  const factor = (length / Math.max(normOf([gradient]), clip)) * BELOW;
  return Float32Array.from(gradient, (value) => value * factor);
}

function normOf(parts: readonly (Float32Array | Float64Array)[]): number {
  let sum = 0;
  for (const part of parts) for (let at = 0; at < part.length; at++) sum += (part[at] as number) ** 2;
  return Math.sqrt(sum);
}

/** No longer than the bound, whatever happened before; zeros where a number is none, because silence would tell. */
function bounded(parts: readonly (readonly [string, Float32Array])[], bound: number): [string, Float32Array][] {
  const fine = parts.every(([, values]) => values.every((value) => Math.abs(value) <= LARGEST));
  const norm = normOf(parts.map(([, values]) => values));
  const factor = !fine ? 0 : norm > bound ? (bound / norm) * BELOW : 1;
  return parts.map(([name, values]) => [name, fine ? values.map((value) => value * factor) : new Float32Array(values.length)]);
}

/** The smallest epsilon that Gaussian noise of this mu has at a delta, rounded up; as the sampler draws it. */
function epsilonOf(mu: number, delta: number, dimension: number): number {
  let [low, high] = [0, 1];
  while (latticeDelta(high, mu, dimension) > delta) high *= 2;
  for (let step = 0; step < 60; step++) {
    const middle = (low + high) / 2;
    if (latticeDelta(middle, mu, dimension) > delta) low = middle;
    else high = middle;
  }
  return high;
}
