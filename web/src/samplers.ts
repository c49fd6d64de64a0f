/**
 * Noise made of random words: rounded Gaussian or Laplace draws of UNITS lattice units.
 *
 * The same algorithm as veilrec/privacy/samplers.py, word for word: the same 64-bit words give the same integers.
 * The bound of its error (RELATIVE_ERROR of every probability) is proved there; it asks for doubles, an exp that is
 * right to a unit in the last place, and exact decisions where a word meets a threshold or lies far in the tail.
 */
import {
  atMost,
  below,
  expMinus,
  floorOf,
  minus,
  over,
  plus,
  ratio,
  times,
  type Fraction,
  type Interval,
} from "./fractions.js";
import { BadInput } from "./errors.js";

export const UNITS = 2 ** 20; // lattice units per standard deviation (Gaussian) or scale (Laplace)
export const RELATIVE_ERROR = 2 ** -48;
const FAR = 6; // whole parts from which on a Gaussian proposal is decided exactly
const STRIDE = 4; // whole parts of a Laplace draw in one table of thresholds
const CHUNK = 1 << 15;
const LARGEST = 2 ** 62;

/** Independent uniform 64-bit words. */
export interface Source {
  words(count: number): BigUint64Array;
}

/** The browser's cryptographic generator. */
export class SecureSource implements Source {
  words(count: number): BigUint64Array {
    const words = new BigUint64Array(count);
    for (let at = 0; at < count; at += 8192) crypto.getRandomValues(words.subarray(at, at + 8192)); // 64 kB at a time
    return words;
  }
}

/** Further words, fetched in small batches and taken from the end. */
class Integers {
  private words: bigint[] = [];
  constructor(private readonly source: Source) {}
  word(): bigint {
    if (this.words.length === 0) this.words = Array.from(this.source.words(32));
    return this.words.pop() as bigint;
  }
}

/** A uniform number in [0, 1) of which the first bits are known, and more when they are needed. */
class Uniform {
  constructor(
    private readonly integers: Integers,
    private known: bigint,
    public bits: number,
  ) {}
  get interval(): Interval {
    const bottom = 1n << BigInt(this.bits);
    return [ratio(this.known, bottom), ratio(this.known + 1n, bottom)];
  }
  extend(): void {
    this.known = (this.known << 64n) | this.integers.word();
    this.bits += 64;
  }
}

const ZERO = ratio(0n);
const ONE = ratio(1n);

function gaussianCumulative(bits: number): Interval[] {
  const last = Math.floor(Math.sqrt(2 * bits)) + 2;
  const weights = Array.from({ length: last + 1 }, (_, k) => expMinus(ratio(BigInt(k * k), 2n), bits + 8));
  const beyond = ratio(1n, 1n << BigInt(bits + 8));
  const most = weights.reduce((sum, [, high]) => plus(sum, high), beyond);
  const least = weights.reduce((sum, [low]) => plus(sum, low), ZERO);
  let [low, high] = [ZERO, ZERO];
  return weights.map((weight) => {
    low = plus(low, weight[0]);
    high = plus(high, weight[1]);
    const upper = over(high, least);
    return [over(low, most), atMost(upper, ONE) ? upper : ONE];
  });
}

function laplaceCumulative(bits: number): Interval[] {
  const bounds: Interval[] = [];
  for (let k = 1; k <= STRIDE; k++) {
    const [low, high] = expMinus(ratio(BigInt(k)), bits);
    bounds.push([minus(ONE, high), minus(ONE, low)]);
  }
  return [...bounds, [ONE, ONE]];
}

function firstWords(bounds: Interval[]): bigint[] {
  const shift = ratio(1n << 64n);
  return bounds.map(([low, high]) => {
    const word = floorOf(times(low, shift));
    if (word !== floorOf(times(high, shift))) throw new Error("a threshold is too close to a multiple of 2^-64");
    return word;
  });
}

function roundWithSign(whole: number, fraction: bigint): number {
  // |z| = whole + (fraction >> 1) / 2^63, rounded to 2^20 units per whole; the lowest bit is the sign.
  const halfUnits = whole * 2 ** 21 + Number(fraction >> 43n);
  const rounded = Math.floor((halfUnits + 1) / 2);
  return fraction & 1n ? 0 - rounded : rounded;
}

function accept(probability: number, word: bigint): boolean {
  return probability >= 1 || word < BigInt(Math.floor(probability * 18446744073709551616));
}

interface Carry {
  more: number;
}

interface Law {
  readonly thresholds: () => readonly bigint[];
  readonly cumulative: (bits: number) => Interval[];
  readonly exponent: (whole: number, part: Fraction) => Fraction; // of the acceptance; rises with the part
  readonly probability: (whole: number, part: number) => number; // the same as a double
  readonly stride: number | null; // the whole part that means "so many more, and draw again"
}

function exactWhole(law: Law, uniform: Uniform): number {
  for (;;) {
    const [least, most] = uniform.interval;
    const bounds = law.cumulative(uniform.bits);
    for (let whole = 0; whole < bounds.length; whole++) {
      const [low, high] = bounds[whole] as Interval;
      if (atMost(most, low)) return whole;
      if (below(least, high)) break; // the threshold may lie on either side
    }
    uniform.extend();
  }
}

function exactlyAccepted(law: Law, whole: number, part: Uniform, uniform: Uniform): boolean {
  for (;;) {
    const [nearest, farthest] = part.interval;
    const [least, most] = uniform.interval;
    if (atMost(most, expMinus(law.exponent(whole, farthest), uniform.bits)[0])) return true;
    if (atMost(expMinus(law.exponent(whole, nearest), uniform.bits)[1], least)) return false;
    part.extend();
    uniform.extend();
  }
}

/** One proposal, decided with as many more words as it takes; null: refused. */
function propose(law: Law, words: readonly [bigint, bigint, bigint], integers: Integers, carry: Carry): number | null {
  const [first, fraction, last] = words;
  const whole = exactWhole(law, new Uniform(integers, first, 64));
  if (whole === law.stride) {
    carry.more += whole;
    return null;
  }
  const more = carry.more;
  carry.more = 0;
  const accepted = exactlyAccepted(
    law,
    whole,
    new Uniform(integers, fraction >> 1n, 63),
    new Uniform(integers, last, 64),
  );
  return accepted ? roundWithSign(more + whole, fraction) : null;
}

function proposal(law: Law, words: readonly [bigint, bigint, bigint], integers: Integers, carry: Carry): number | null {
  const [first, fraction, last] = words;
  const [thresholds, { stride }] = [law.thresholds(), law];
  let whole = 0;
  while (whole < thresholds.length && first > (thresholds[whole] as bigint)) whole++;
  if (whole === thresholds.length && stride !== null) {
    carry.more += whole;
    return null;
  }
  if (whole === thresholds.length || first === thresholds[whole]) return propose(law, words, integers, carry);
  const more = carry.more;
  carry.more = 0; // a refused draw starts again from nothing
  const part = Number(fraction >> 1n) * 2 ** -63;
  return accept(law.probability(whole, part), last) ? roundWithSign(more + whole, fraction) : null;
}

function draw(law: Law, source: Source, count: number): number[] {
  const out: number[] = [];
  const carry: Carry = { more: 0 };
  const integers = new Integers(source);
  while (out.length < count) {
    const end = Math.min(out.length + CHUNK, count);
    const wanted = end - out.length;
    const words = source.words(3 * (wanted + Math.floor(wanted / 2) + 8));
    for (let at = 0; at + 2 < words.length && out.length < end; at += 3) {
      const three = [words[at], words[at + 1], words[at + 2]] as unknown as [bigint, bigint, bigint];
      const drawn = proposal(law, three, integers, carry);
      if (drawn !== null) out.push(drawn);
    }
  }
  return out;
}

/** Worked out when noise is first drawn: a page that sends nothing does not wait for it. */
function once<T>(make: () => T): () => T {
  let made: T | undefined;
  return () => (made ??= make());
}

const GAUSSIAN: Law = {
  thresholds: once(() => firstWords(gaussianCumulative(128).slice(0, FAR))),
  cumulative: gaussianCumulative,
  exponent: (whole, part) => over(times(part, plus(ratio(BigInt(2 * whole)), part)), ratio(2n)),
  probability: (whole, part) => Math.exp(-0.5 * part * (2 * whole + part)),
  stride: null,
};
const LAPLACE: Law = {
  thresholds: once(() => firstWords(laplaceCumulative(128).slice(0, STRIDE))),
  cumulative: laplaceCumulative,
  exponent: (_, part) => part,
  probability: (_, part) => Math.exp(-part),
  stride: STRIDE,
};

/** Independent draws of N(0, UNITS^2), rounded to whole numbers. */
export function latticeGaussian(source: Source, count: number): number[] {
  return draw(GAUSSIAN, source, count);
}

/** Independent Laplace draws of scale UNITS, rounded to whole numbers. */
export function latticeLaplace(source: Source, count: number): number[] {
  return draw(LAPLACE, source, count);
}

/** In lattice units, cut towards zero. */
export function toLattice(values: ArrayLike<number>, grid: number): number[] {
  const units = Array.from(values, (value) => Math.trunc(value / grid));
  if (!units.every((unit) => Math.abs(unit) < LARGEST))
    throw new BadInput(`a value is more than ${LARGEST * grid} from 0, too far for noise of scale ${UNITS * grid}`);
  return units;
}

function onLattice(values: ArrayLike<number>, grid: number, noise: number[]): number[] {
  // As whole numbers: beyond 2^53 a sum of doubles would be rounded.
  return toLattice(values, grid).map((unit, at) => Number(BigInt(unit) + BigInt(noise[at] as number)) * grid);
}

/** The values plus Gaussian noise on the lattice of step sigma / UNITS. */
export function addGaussian(values: ArrayLike<number>, sigma: number, source: Source): number[] {
  return onLattice(values, sigma / UNITS, latticeGaussian(source, values.length));
}

/** The values plus Laplace noise on the lattice of step scale / UNITS. */
export function addLaplace(values: ArrayLike<number>, scale: number, source: Source): number[] {
  return onLattice(values, scale / UNITS, latticeLaplace(source, values.length));
}
