/**
 * Where items lie beyond their content, and what one history says of that (models/veil_places.py and
 * client/veil.py): estimated from noisy sums that were released, with the own part of them taken away.
 */
import { addSquare, dot, factored, solvedBy } from "./linear.js";
import { decaysOf, profiles, type Content } from "./veil_content.js";

const PLACE_CLIP = 0.8; // of all places of a history together
const [RIDGE, PRIOR, PER_VOTE, LEAST] = [3, 0.07, 0.2, 1e-4] as const; // in squared units of a place along one direction
const LEAST_SPREAD = 1e-6;

export const IN_BASIS = 0.5; // how long a place beyond content is beside content

/** What is known of the items along each direction. */
export interface Places {
  readonly directions: number;
  readonly values: Float32Array; // [items, directions] each: beyond content
  readonly gains: Float32Array; // how far one more of the sum moves the value
  readonly expected: Float32Array; // the mean place of an item of this content
}

/** A table of items, row by row. */
interface Table {
  readonly items: number;
  readonly width: number;
  readonly values: ArrayLike<number>;
}

/** Directions of which nothing is known yet; none at all where there are 0. */
export function unknownPlaces(items: number, directions: number): Places {
  const nothing = new Float32Array(items * directions);
  return { directions, values: nothing, gains: nothing, expected: nothing };
}

/** The directions of both. */
export function bothPlaces(first: Places, second: Places, items: number): Places {
  const beside = (one: Float32Array, other: Float32Array): Float32Array =>
    besideEachOther({ items, width: first.directions, values: one }, { items, width: second.directions, values: other });
  return {
    directions: first.directions + second.directions,
    values: beside(first.values, second.values),
    gains: beside(first.gains, second.gains),
    expected: beside(first.expected, second.expected),
  };
}

/**
 * From sums [items, directions] with noise of this standard deviation, and how many votes items have [items]: what they
 * say beyond content, and beyond the places that an earlier sum has told.
 */
export function placed(sums: ArrayLike<number>, directions: number, noise: number, votes: Float64Array, content: Content, before: Places): Places {
  const items = content.items;
  const shape = items * directions;
  const [values, gains, expected] = [new Float32Array(shape), new Float32Array(shape), new Float32Array(shape)];
  const width = content.width + before.directions;
  const size = 1 + width;
  const told = { items, width: before.directions, values: before.values };
  const design = standardised({ items, width, values: besideEachOther({ items, width: content.width, values: content.basis }, told) });
  // A place S / W has variance prior + per_vote / W + noise^2 / W^2.
  const weight = votes.map((vote) => vote ** 2 / (PRIOR * vote ** 2 + PER_VOTE * vote + noise ** 2));
  const gram = new Float64Array(size * size);
  for (let item = 0; item < items; item++) addSquare(gram, design, item * size, weight[item] as number, size);
  for (let f = 0; f < size; f++) gram[f * size + f] = (gram[f * size + f] as number) + RIDGE;
  const factor = factored(gram, size);
  const all = votes.reduce((sum, vote) => sum + vote, 0);
  for (let d = 0; d < directions; d++) {
    const seen = Float64Array.from({ length: items }, (_, item) => sums[item * directions + d] as number);
    const mean = seen.reduce((sum, value) => sum + value, 0) / all;
    const right = new Float64Array(size);
    seen.forEach((value, item) => {
      const off = (weight[item] as number) * (value / (votes[item] as number) - mean);
      for (let f = 0; f < size; f++) right[f] = (right[f] as number) + off * (design[item * size + f] as number);
    });
    const learnt = solvedBy(factor, right);
    const predicted = seen.map((_, item) => mean + dot(design, learnt, size, item * size));
    const left = seen.map((value, item) => value - (votes[item] as number) * (predicted[item] as number));
    // Moments: E left^2 = W^2 variance + W per_vote + noise^2, items weighed by how well they tell.
    let [above, below] = [0, 0];
    left.forEach((value, item) => {
      const vote = votes[item] as number;
      const squared = ((weight[item] as number) / vote) ** 2;
      above += squared * (value ** 2 - PER_VOTE * vote - noise ** 2);
      below += squared * vote ** 2;
    });
    const variance = Math.max(above / below, LEAST);
    left.forEach((value, item) => {
      const [vote, at] = [votes[item] as number, item * directions + d];
      const gain = (vote * variance) / (vote ** 2 * variance + vote * PER_VOTE + noise ** 2) / Math.sqrt(variance);
      [values[at], gains[at], expected[at]] = [gain * value, gain, predicted[item] as number];
    });
  }
  return { directions, values, gains, expected };
}

/** One, and the columns of a table with mean 0 and deviation 1: [items, 1 + width]. */
function standardised(table: Table): Float64Array {
  const { items, width } = table;
  const out = new Float64Array(items * (1 + width)).fill(1);
  for (let d = 0; d < width; d++) {
    const [mean, spread] = meanAndSpread(table, d);
    for (let at = 0; at < items; at++) out[at * (1 + width) + 1 + d] = ((table.values[at * width + d] as number) - mean) / spread;
  }
  return out;
}

function meanAndSpread({ values, items, width }: Table, d: number): [number, number] {
  let [sum, squares] = [0, 0];
  for (let at = 0; at < items; at++) sum += values[at * width + d] as number;
  for (let at = 0; at < items; at++) squares += ((values[at * width + d] as number) - sum / items) ** 2;
  return [sum / items, Math.max(Math.sqrt(squares / items), LEAST_SPREAD)];
}

/** The columns of content, and beside them those of places. */
export function columnsOf({ items, width, basis }: Content, places: Places): Float32Array {
  const shorter = places.values.map((value) => IN_BASIS * value);
  return besideEachOther({ items, width, values: basis }, { items, width: places.directions, values: shorter });
}

function besideEachOther(first: Table, second: Table): Float32Array {
  const width = first.width + second.width;
  const out = new Float32Array(first.items * width);
  for (let at = 0; at < first.items; at++) {
    for (let d = 0; d < first.width; d++) out[at * width + d] = first.values[at * first.width + d] as number;
    for (let d = 0; d < second.width; d++) out[at * width + first.width + d] = second.values[at * second.width + d] as number;
  }
  return out;
}

/** Where each item of a history was used, [n, directions], and what each place counts, so that all keep to the clip. */
export interface Used {
  readonly places: Float64Array;
  readonly share: number;
}

/** The first columns of a table of items, each of deviation 2: the space that places are in; of which nothing is known stays 0. */
export class Among {
  private readonly columns: Float64Array; // [items, directions]

  constructor(
    values: Float32Array, // [items, directions or more]: content, or what an earlier pass said
    private readonly items: number,
    private readonly directions: number,
    private readonly recency: number, // what came before an item counts less by this scale, in items
  ) {
    const width = values.length / Math.max(items, 1);
    this.columns = new Float64Array(items * directions);
    for (let d = 0; d < directions; d++) {
      const factor = 2 / meanAndSpread({ values, items, width }, d)[1];
      for (let at = 0; at < items; at++) this.columns[at * directions + d] = factor * (values[at * width + d] as number);
    }
  }

  of(history: ArrayLike<number>): Used {
    const everywhere = Array.from({ length: this.directions ? history.length : 0 }, (_, at) => at);
    const places = profiles(history, everywhere, this.columns, this.directions, decaysOf([this.recency]));
    const length = Math.sqrt(places.reduce((sum, value) => sum + value * value, 0) / Math.max(places.length, 1));
    return { places, share: Math.min(1, PLACE_CLIP / Math.max(length, 1e-9)) / Math.sqrt(Math.max(history.length, 1)) };
  }

  /** What a client adds to the sums of places: [items, directions]. */
  told(history: ArrayLike<number>): Float64Array {
    const { directions } = this;
    const { places, share } = this.of(history);
    const out = new Float64Array(this.items * directions);
    for (let at = 0; at < history.length; at++)
      for (let d = 0; d < directions; d++) {
        const place = (history[at] as number) * directions + d;
        out[place] = (out[place] as number) + ((places[at * directions + d] as number) * share) / Math.sqrt(directions);
      }
    return out;
  }
}
