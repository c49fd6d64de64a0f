/** From a user vector and clicks to the bytes of a query, by one of the offers of a release. */
import type { Bytes } from "./bytes.js";
import type { Promised } from "./budget.js";
import { BadRelease } from "./errors.js";
import {
  checkGaussianAttention,
  checkLaplaceAttention,
  checkPooled,
  NO_GUARANTEE,
  type Claim,
  type Guarantee,
} from "./guarantee.js";
import { karyResponse, noisyAttention, noisyPooled, strongest } from "./mechanisms.js";
import { encodeQuery } from "./queries.js";
import type { Manifest, Offer } from "./release.js";
import { doubles, type Tensors } from "./safetensors.js";
import type { Source } from "./samplers.js";

/** What of a person goes into a mechanism. */
export interface Person {
  readonly user: Float64Array; // [d]
  readonly ranking?: Float64Array; // [d]: what news are ranked with, where that is another vector
  readonly alpha: readonly number[] | null; // [B], where the model has basis vectors
  readonly clicks: readonly Float64Array[]; // oldest first
}

function wanted(offer: Offer, name: "scale" | "sigma" | "clip" | "slots"): number {
  const value = offer[name];
  if (typeof value !== "number" || !(value > 0) || !Number.isFinite(value))
    throw new BadRelease(`the offer ${offer.mode} of the release has no ${name} above 0`);
  return value;
}

/** What is charged for an offer; the client works out itself that the noise keeps it, and refuses otherwise. */
export function promiseOf(offer: Offer): Promised {
  if (offer.mode === "plain" && offer.kind === "vector") return null;
  const { epsilon, delta, unit, adjacency, size } = offer;
  if (typeof epsilon !== "number" || !(epsilon > 0) || typeof delta !== "number" || !(delta >= 0) || !unit || !adjacency)
    throw new BadRelease(`the offer ${offer.mode} of the release lacks epsilon, delta, unit or adjacency`);
  const claim: Claim = { epsilon, delta, unit, adjacency };
  const history = unit !== "user" && adjacency === "replace-one";
  if (offer.mode === "interest" && offer.kind === "interest" && history && size >= 2) return claim; // drawn for this epsilon
  if (offer.mode === "attention" && offer.kind === "attention") {
    const check = offer.noise === "gaussian" ? checkGaussianAttention : checkLaplaceAttention;
    check(claim, size, wanted(offer, "clip"), wanted(offer, "scale"));
    return claim;
  }
  if (offer.mode === "pooled" && offer.kind === "pooled") {
    checkPooled(claim, size, wanted(offer, "clip"), wanted(offer, "sigma"), wanted(offer, "slots"));
    return claim;
  }
  throw new BadRelease(`the release offers ${offer.mode}, which this client does not know: reload the page`);
}

/** The statement of an offer as shown to people: what the client worked out, in the words of the release. */
export function statementOf(offer: Offer): Guarantee {
  const promise = promiseOf(offer);
  if (promise === null) return { ...NO_GUARANTEE, caveats: ["The server gets your vector as it is."] };
  const caveats = offer.guarantee?.caveats ?? [];
  return { basis: "proven", ...promise, scope: "per message", trust: "nobody", caveats };
}

/** What tells the message of one way of asking from all others, in one period. */
export function messageKey(manifest: Manifest, offer: Offer): string {
  const { mode, kind, size, epsilon, delta, unit, adjacency, noise, scale, sigma, clip, slots, how } = offer;
  return JSON.stringify([
    ...[manifest.name, manifest.version, mode, kind, size],
    ...[epsilon, delta, unit, adjacency, noise, scale, sigma, clip, slots, how].map((value) => value ?? null),
  ]);
}

/** Which of the public interests is nearest: u . b - |b|^2 / 2. */
export function nearness(user: ArrayLike<number>, interests: Float64Array): number[] {
  const dim = user.length;
  const found: number[] = [];
  for (let row = 0; row < interests.length; row += dim) {
    let near = 0;
    for (let q = 0; q < dim; q++) {
      const b = interests[row + q] as number;
      near += (user[q] as number) * b - 0.5 * b * b;
    }
    found.push(near);
  }
  return found;
}

/** One draw of a query; it stays here until it is charged. */
export function draw(offer: Offer, person: Person, serving: Tensors, source: Source): Bytes {
  const { kind, size, mode } = offer;
  const dim = person.user.length;
  const whole = Array.from(person.user).every(Number.isFinite);
  const user = whole ? person.user : new Float64Array(dim);
  if (mode === "plain") return encodeQuery("vector", size, Array.from(person.ranking ?? user));
  if (mode === "pooled") {
    const [centre, axes] = [doubles(serving, "pooled.centre", [dim]), doubles(serving, "pooled.axes", [dim, size])];
    const [clip, slots, sigma] = [wanted(offer, "clip"), wanted(offer, "slots"), wanted(offer, "sigma")];
    return encodeQuery(kind, size, noisyPooled(person.clicks, { centre, axes, clip, slots, sigma }, source));
  }
  if (mode === "interest" && offer.how === "nearest") {
    const near = nearness(user, doubles(serving, "interests", [size, dim]));
    return encodeQuery(kind, size, [karyResponse(strongest(near), size, offer.epsilon ?? 0, source)]);
  }
  if (person.alpha === null || person.alpha.length !== size)
    throw new BadRelease(`the release offers ${mode}, and its model has no ${size} basis vectors`);
  if (mode === "interest") return encodeQuery(kind, size, [karyResponse(strongest(person.alpha), size, offer.epsilon ?? 0, source)]);
  const [clip, scale] = [wanted(offer, "clip"), wanted(offer, "scale")];
  return encodeQuery(kind, size, noisyAttention(person.alpha, { noise: offer.noise ?? "laplace", clip, scale }, source));
}
