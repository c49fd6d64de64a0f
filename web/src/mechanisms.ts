/** What is told of a history instead of the history: the mechanisms of veilrec/privacy/mechanisms, for one client. */
import { BadInput } from "./errors.js";
import { addGaussian, addLaplace, type Source } from "./samplers.js";

const BELOW_ONE = 1 - 2 ** -40; // a softmax may add up to a little more than 1
const BELOW = 1 - 2 ** -22; // of a clip norm: rounding never carries a vector beyond it
const SAFE = 1 + 2 ** -50; // the probability of a lie is never below the exact value
const SHRUNK = 1 + 1e-9; // a projection shrinks by this, whatever its rounding

export type Noise = "laplace" | "gaussian";

/** A coin that shows true with the probability, rounded up to the next multiple of 2^-64. */
export function happens(probability: number, source: Source): boolean {
  const exact = BigInt(Math.ceil(probability * 2 ** 64));
  const threshold = exact < 2n ** 64n ? exact : 2n ** 64n - 1n;
  return (source.words(1)[0] as bigint) < threshold;
}

/** The vector, cut to an L2 norm of at most `clip`. */
export function clipped(vector: ArrayLike<number>, clip: number): number[] {
  const values = Array.from(vector);
  const norm = Math.sqrt(values.reduce((sum, value) => sum + value * value, 0));
  if (!Number.isFinite(norm)) throw new BadInput("a vector has numbers that are not finite");
  const limit = clip * BELOW;
  const factor = limit / Math.max(norm, limit);
  return values.map((value) => value * factor);
}

/** The place of the largest number; of equal ones the first. */
export function strongest(values: ArrayLike<number>): number {
  let best = 0;
  for (let at = 1; at < values.length; at++) if ((values[at] as number) > (values[best] as number)) best = at;
  return best;
}

/** The true category with probability e^eps / (e^eps + C - 1), each other one with 1 / (e^eps + C - 1). */
export function karyResponse(truth: number, categories: number, epsilon: number, source: Source): number {
  if (!Number.isInteger(truth) || truth < 0 || truth >= categories)
    throw new BadInput(`no category ${truth} of ${categories}`);
  const others = categories - 1;
  const weight = Math.exp(-epsilon);
  const lies = happens(SAFE * others * (weight / (1 + others * weight)), source);
  // A step of 1 to C - 1 leads to every other category equally often.
  const step = Number((source.words(1)[0] as bigint) % BigInt(others)) + 1;
  return lies ? (truth + step) % categories : truth;
}

/** Attention over basis vectors [B, d]: softmax(u b^T / sqrt(d)); uniform for a vector that is no number. */
export function decompose(user: ArrayLike<number>, basis: Float64Array): number[] {
  const dim = user.length;
  const whole = Array.from(user).every(Number.isFinite);
  const scores: number[] = [];
  for (let row = 0; row < basis.length; row += dim) {
    let dot = 0;
    for (let q = 0; whole && q < dim; q++) dot += (user[q] as number) * (basis[row + q] as number);
    scores.push(dot / Math.sqrt(dim));
  }
  return softmax(scores);
}

export function softmax(scores: readonly number[]): number[] {
  const most = scores.reduce((a, b) => Math.max(a, b), -Infinity);
  const weights = scores.map((score) => Math.exp(score - most));
  const total = weights.reduce((a, b) => a + b, 0);
  return weights.map((weight) => weight / total);
}

/** Attention within the bound that its sensitivity rests on. */
export function clippedAttention(attention: readonly number[], clip: number): number[] {
  const total = attention.reduce((a, b) => a + b, 0);
  if (!(Math.min(...attention) >= 0 && Math.abs(total - 1) <= 1e-4))
    throw new BadInput("attention has to be a softmax: not negative, and adding up to 1");
  return clipped(
    attention.map((share) => (share / Math.max(total, 1)) * BELOW_ONE),
    clip,
  );
}

/** Clipped attention with noise. */
export function noisyAttention(
  attention: readonly number[],
  how: { noise: Noise; scale: number; clip: number },
  source: Source,
): number[] {
  const inside = clippedAttention(attention, how.clip);
  return how.noise === "laplace"
    ? addLaplace(inside, how.scale, source)
    : addGaussian(inside, how.scale, source);
}

export interface PooledHow {
  readonly centre: Float64Array; // [d]
  readonly axes: Float64Array; // [d, m]
  readonly clip: number;
  readonly slots: number;
  readonly sigma: number;
}

/** The sum over the latest clicks of clipped ((vector - centre) @ axes), divided by the number of slots. */
export function pooled(clicks: readonly ArrayLike<number>[], how: PooledHow): number[] {
  const dim = how.centre.length;
  const width = how.axes.length / dim;
  const sums = new Array<number>(width).fill(0);
  for (const click of clicks.slice(-how.slots)) {
    const along = new Array<number>(width).fill(0);
    for (let q = 0; q < dim; q++) {
      const centred = (click[q] as number) - (how.centre[q] as number);
      for (let m = 0; m < width; m++) along[m] = (along[m] as number) + centred * (how.axes[q * width + m] as number);
    }
    clipped(along, how.clip).forEach((value, m) => (sums[m] = (sums[m] as number) + value / SHRUNK));
  }
  return sums.map((sum) => sum / how.slots);
}

/** The same with Gaussian noise. */
export function noisyPooled(clicks: readonly ArrayLike<number>[], how: PooledHow, source: Source): number[] {
  return addGaussian(pooled(clicks, how), how.sigma, source);
}
