/**
 * What a message promises, with everything that an epsilon means nothing without.
 *
 * A client believes no epsilon that it has not worked out: `promiseOf` derives it from the noise that the client itself
 * adds, and refuses an offer that claims less.
 */
import { BadInput } from "./errors.js";
import { RELATIVE_ERROR, UNITS } from "./samplers.js";

export type Unit = "click" | "history" | "user";
export type Adjacency = "replace-one" | "add-remove";

export interface Guarantee {
  readonly basis: "proven" | "as published" | "none";
  readonly unit: Unit | null;
  readonly adjacency: Adjacency | null;
  readonly epsilon: number | null;
  readonly delta: number | null;
  readonly scope: string | null;
  readonly trust: string | null;
  readonly caveats: readonly string[];
  readonly honest_epsilon?: number | null;
  readonly honest_delta?: number | null;
}

export const NO_GUARANTEE: Guarantee = {
  basis: "none",
  unit: null,
  adjacency: null,
  epsilon: null,
  delta: null,
  scope: null,
  trust: null,
  caveats: [],
};

export const NOTHING_SENT: Guarantee = {
  basis: "proven",
  unit: "history",
  adjacency: "replace-one",
  epsilon: 0,
  delta: 0,
  scope: "lifetime",
  trust: "nobody",
  caveats: [
    "Nothing of you is sent: the browser downloads what every other one downloads, and ranks it itself.",
    "That this browser asks at all, when, and from which address, is not covered.",
  ],
};

const WORDS: Readonly<Record<string, readonly unknown[]>> = {
  basis: ["proven", "as published", "none"],
  unit: [null, "click", "history", "user"],
  adjacency: [null, "replace-one", "add-remove"],
  scope: [null, "per message", "per round", "whole run", "lifetime"],
  trust: [null, "nobody", "server sees only noisy sums", "server sees only sums", "server"],
};

const NAMES = [
  ...["basis", "unit", "adjacency", "epsilon", "delta", "scope", "trust", "caveats", "honest_epsilon", "honest_delta"],
  ...["honest_note", "event", "obstacle", "disclosure"],
];

/** Whether a value of JSON is a statement that Python would read: known words, and an epsilon with all that belongs to it. */
export function isGuarantee(value: unknown): value is Guarantee {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
  const fields = value as Readonly<Record<string, unknown>>;
  const of = (name: string): unknown => (Object.hasOwn(fields, name) ? fields[name] : null) ?? null;
  const [epsilon, delta, caveats, note, event] = ["epsilon", "delta", "caveats", "honest_note", "event"].map(of);
  const [honest, itsDelta, basis] = [of("honest_epsilon"), of("honest_delta"), of("basis")];
  const isCost = (cost: unknown, below: number): boolean => cost === null || (typeof cost === "number" && cost >= 0 && cost < below);
  const stated = [of("unit"), of("adjacency"), epsilon, delta, of("scope"), of("trust")].map((each) => each !== null);
  return (
    Object.keys(fields).every((name) => NAMES.includes(name)) &&
    (!Object.hasOwn(fields, "obstacle") || typeof fields["obstacle"] === "string") &&
    Object.entries(WORDS).every(([name, words]) => words.includes(of(name))) &&
    (basis === "none" ? event === null && !stated.includes(true) : !stated.includes(false)) &&
    (basis === "as published" ? true : honest === null && !note) &&
    (honest === null) === (itsDelta === null) &&
    [epsilon, honest].every((cost) => isCost(cost, Infinity)) &&
    [delta, itsDelta].every((cost) => isCost(cost, 1)) &&
    (caveats === null ? !Object.hasOwn(fields, "caveats") : Array.isArray(caveats) && caveats.every((each) => typeof each === "string")) &&
    (typeof note === "string" || !Object.hasOwn(fields, "honest_note")) &&
    (event === null || (typeof event === "object" && !Array.isArray(event)))
  );
}

/** As Python prints a number with :g, six digits. */
export function short(value: number): string {
  if (value === 0) return "0";
  const power = Math.floor(Math.log10(Math.abs(value)));
  if (power >= -4 && power < 6) return String(Number(value.toPrecision(6)));
  const [digits, exponent] = value.toExponential(5).split("e") as [string, string];
  const size = exponent.slice(1).padStart(2, "0");
  return `${Number(digits)}e${exponent.startsWith("-") ? "-" : "+"}${size}`;
}

/** One line; an epsilon is never printed without its unit and the rest. */
export function line(guarantee: Guarantee): string {
  const { basis, unit, adjacency, epsilon, delta, scope, trust } = guarantee;
  if (basis === "none" || epsilon === null || delta === null) return "no privacy guarantee";
  const stated = `(${short(epsilon)}, ${short(delta)})-DP per ${unit} (${adjacency}), ${scope}, trusting: ${trust}, ${basis}`;
  if (basis === "proven") return stated;
  const [honest, rest] = [guarantee.honest_epsilon, guarantee.honest_delta];
  if (honest === null || honest === undefined) return `${stated}; that does not hold`;
  return `${stated}; honestly (${Number(honest.toPrecision(4))}, ${short(rest ?? 0)}) in the same terms, proven`;
}

/** Phi(-x) e^(x^2 / 2): the tail of a Gaussian over its density's exponential; x at least 0. */
function scaledTail(x: number): number {
  const t = x / Math.SQRT2;
  if (t < 2.5) {
    // 1 - erf(t), by a series whose terms are all positive.
    let [term, sum] = [t, t];
    for (let n = 1; term > sum * 1e-18; n++) {
      term *= (2 * t * t) / (2 * n + 1);
      sum += term;
    }
    return 0.5 * (Math.exp(t * t) - (2 / Math.sqrt(Math.PI)) * sum);
  }
  let fraction = 0;
  for (let n = 120; n >= 1; n--) fraction = n / 2 / (t + fraction);
  return 0.5 / Math.sqrt(Math.PI) / (t + fraction);
}

/** The smallest delta at epsilon >= 0 of Gaussian noise: Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu). */
export function deltaGaussian(epsilon: number, mu: number): number {
  const [near, far] = [epsilon / mu - mu / 2, epsilon / mu + mu / 2];
  const factor = Math.exp(-0.5 * near * near);
  const upper = near > 0 ? factor * scaledTail(near) : 1 - factor * scaledTail(-near);
  return Math.min(1, Math.max(0, upper - factor * scaledTail(far)));
}

/** The same for noise on the lattice as our sampler draws it, in so many coordinates. */
export function latticeDelta(epsilon: number, mu: number, dimension: number): number {
  const shift = dimension * RELATIVE_ERROR;
  return Math.min(1, Math.exp(shift) * deltaGaussian(Math.max(epsilon - 2 * shift, 0), mu));
}

/** L1 diameter of attention vectors clipped in L2. */
export function attentionL1(clip: number, basis: number): number {
  const half = Math.floor(basis / 2);
  return Math.min(1, clip * Math.sqrt(half)) + Math.min(1, clip * Math.sqrt(basis - half));
}

/** L2 diameter of the same. */
export function attentionL2(clip: number): number {
  return Math.SQRT2 * Math.min(clip, 1);
}

/** What noise of this kind really costs; `mu`: sensitivity over standard deviation. */
function fits(epsilon: number, delta: number, mu: number, dimension: number): boolean {
  return latticeDelta(epsilon, mu, dimension) <= delta * (1 + 1e-6);
}

export interface Claim {
  readonly epsilon: number;
  readonly delta: number;
  readonly unit: Unit;
  readonly adjacency: Adjacency;
}

/** Whether an offer's epsilon and delta hold for the noise that it asks for; throws where they do not. */
export function checkLaplaceAttention(claim: Claim, size: number, clip: number, scale: number): void {
  const real = attentionL1(clip, size) / scale + 2 * size * RELATIVE_ERROR;
  if (!(claim.unit !== "user" && claim.adjacency === "replace-one" && real <= claim.epsilon * (1 + 1e-9)))
    throw new BadInput(refusal("attention", claim));
}

export function checkGaussianAttention(claim: Claim, size: number, clip: number, scale: number): void {
  const mu = attentionL2(clip) / scale;
  if (!(claim.unit !== "user" && claim.adjacency === "replace-one" && fits(claim.epsilon, claim.delta, mu, size)))
    throw new BadInput(refusal("attention", claim));
}

export function checkPooled(claim: Claim, size: number, clip: number, sigma: number, slots: number): void {
  const sensitivity = ((claim.adjacency === "replace-one" ? 2 : 1) * clip) / slots;
  const mu = (sensitivity + (Math.sqrt(size) * sigma) / UNITS) / sigma;
  if (!(claim.unit === "click" && fits(claim.epsilon, claim.delta, mu, size)))
    throw new BadInput(refusal("pooled", claim));
}

export function refusal(mode: string, claim: Claim): string {
  return (
    `the release offers ${mode} at epsilon ${claim.epsilon} per ${claim.unit} (${claim.adjacency}), and its noise does` +
    " not keep that: nothing is sent; tell whoever made the release"
  );
}
