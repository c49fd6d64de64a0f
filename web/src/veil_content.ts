/**
 * What is publicly alike: similarities of items, and how a history looks at candidates. The same numbers as in Python
 * (models/veil_content.py), read from a release.
 */
import { BadRelease } from "./errors.js";
import { doubles, integers, shapeOf, singles, type Tensors, type Whole } from "./safetensors.js";

const ALONE = -1; // of a kernel that is one similarity
const FROM_TEXTS = 2; // similarities that text vectors give: the cosine, and its third power where it is above 0
const REMEMBERED = 400; // items whose cosines with all others are kept

/** What an item's weight is multiplied by for every place farther back. */
export function decaysOf(scales: readonly number[]): Float64Array {
  return Float64Array.from(scales, (scale) => Math.exp(-1 / scale));
}

/** The mean row of a table [items, width] over the items before positions, the latest most: [ends, scales * width]. */
export function profiles(
  history: ArrayLike<number>,
  ends: readonly number[],
  table: ArrayLike<number>,
  width: number,
  decays: Float64Array,
): Float64Array {
  const out = new Float64Array(ends.length * decays.length * width);
  const mean = new Float64Array(width);
  const at = new Map(ends.map((end, target) => [end, target]));
  for (let scale = 0; scale < decays.length; scale++) {
    const decay = decays[scale] as number;
    mean.fill(0);
    let total = 0;
    for (let position = 0; position <= history.length; position++) {
      const target = at.get(position);
      if (target !== undefined && total > 0) {
        const place = (target * decays.length + scale) * width;
        for (let d = 0; d < width; d++) out[place + d] = (mean[d] as number) / total;
      }
      if (position === history.length) break;
      const row = (history[position] as number) * width;
      for (let d = 0; d < width; d++) mean[d] = (mean[d] as number) * decay + (table[row + d] as number);
      total = total * decay + 1;
    }
  }
  return out;
}

/** A kernel: one similarity, or the product of two. */
interface Kernel {
  readonly first: number;
  readonly second: number; // ALONE
  readonly scale: number;
}

export class Content {
  private readonly cosines = new Map<number, Float32Array>(); // of an item with all others
  private constructor(
    readonly items: number,
    private readonly codes: Whole, // [tables, items]
    private readonly tables: Float32Array,
    private readonly starts: Whole,
    private readonly widths: Whole,
    private readonly texts: Float32Array, // [items, words]
    private readonly words: number,
    private readonly kernels: readonly Kernel[],
    readonly basis: Float32Array, // [items, width]
    readonly width: number,
  ) {}

  static read(file: Tensors, items: number): Content {
    const [count = 0] = shapeOf(file, "content.widths");
    const [n = 0] = shapeOf(file, "content.kernels");
    const [words = 0, width = 0] = [shapeOf(file, "content.texts")[1], shapeOf(file, "content.basis")[1]];
    const codes = integers(file, "content.codes", [count, items]);
    const [starts, widths] = [integers(file, "content.starts", [count]), integers(file, "content.widths", [count])];
    const pairs = integers(file, "content.kernels", [n, 2]);
    const scales = doubles(file, "content.scales", [n]);
    let size = 0;
    for (let table = 0; table < count; table++) {
      const side = widths[table] as number;
      if (starts[table] !== size) throw lost();
      size += side * side;
      for (let item = 0; item < items; item++) {
        const code = codes[table * items + item] as number;
        if (code < 0 || code >= side) throw lost();
      }
    }
    const similarities = count + (words ? FROM_TEXTS : 0);
    const kernels = Array.from(scales, (scale, at): Kernel => {
      const [first, second] = [pairs[2 * at] as number, pairs[2 * at + 1] as number];
      if (first < 0 || second < ALONE || Math.max(first, second) >= similarities) throw lost();
      return { first, second, scale };
    });
    const tables = singles(file, "content.tables", [size]);
    const texts = singles(file, "content.texts", [items, words]);
    const basis = singles(file, "content.basis", [items, width]);
    return new Content(items, codes, tables, starts, widths, texts, words, kernels, basis, width);
  }

  get size(): number {
    return this.kernels.length;
  }

  /** Kernels of one pair. */
  private pair(row: number, column: number, alike: Float64Array, values: Float64Array): void {
    const { items, codes, tables, starts, widths, texts, words, kernels } = this;
    const count = widths.length;
    for (let table = 0; table < count; table++) {
      const [a, b] = [codes[table * items + row] as number, codes[table * items + column] as number];
      alike[table] = tables[(starts[table] as number) + a * (widths[table] as number) + b] as number;
    }
    if (words) {
      let cosine = 0;
      for (let d = 0, p = row * words, q = column * words; d < words; d++, p++, q++)
        cosine += (texts[p] as number) * (texts[q] as number);
      alike[count] = cosine;
      alike[count + 1] = Math.max(cosine, 0) ** 3;
    }
    for (let at = 0; at < kernels.length; at++) {
      const { first, second, scale } = kernels[at] as Kernel;
      values[at] = (alike[first] as number) * scale * (second === ALONE ? 1 : (alike[second] as number));
    }
  }

  /** Features [candidates, scales * kernels] of candidates before a position of a history; the latest items count. */
  features(
    history: ArrayLike<number>,
    end: number,
    candidates: ArrayLike<number>,
    decays: Float64Array,
    latest: number,
  ): Float64Array {
    const [n, scales] = [this.size, decays.length];
    const { weights, totals, used } = recency(Math.min(end, latest), decays);
    const [alike, values] = [new Float64Array(this.widths.length + FROM_TEXTS), new Float64Array(n)];
    const out = new Float64Array(candidates.length * scales * n);
    for (let at = 0; at < candidates.length; at++)
      for (let back = 0; back < used; back++) {
        this.pair(candidates[at] as number, history[end - 1 - back] as number, alike, values);
        for (let scale = 0, place = at * scales * n; scale < scales; scale++) {
          const share = (weights[back * scales + scale] as number) / (totals[scale] as number);
          for (let k = 0; k < n; k++, place++) out[place] = (out[place] as number) + (values[k] as number) * share;
        }
      }
    return out;
  }

  /** The sum of weights times features, of every item after the whole history: as `features`, and much faster. */
  weighed(history: ArrayLike<number>, weights: Float64Array, decays: Float64Array, latest: number): Float64Array {
    const n = this.size;
    const { weights: shares, totals, used } = recency(Math.min(history.length, latest), decays);
    const out = new Float64Array(this.items);
    const byCode = Array.from(this.widths, (side) => new Float64Array(side)); // what a value of a feature is worth
    const ofText = new Float64Array(this.words);
    const factors = new Float64Array(n); // of each kernel, for the item so many places back
    for (let back = 0; back < used; back++) {
      const item = history[history.length - 1 - back] as number;
      for (let k = 0; k < n; k++) {
        let factor = 0;
        for (let scale = 0; scale < decays.length; scale++)
          factor += ((weights[scale * n + k] as number) * (shares[back * decays.length + scale] as number)) / (totals[scale] as number);
        factors[k] = factor * (this.kernels[k] as Kernel).scale;
      }
      this.add(item, factors, byCode, ofText, out);
    }
    const { items, codes } = this;
    byCode.forEach((worth, table) => {
      for (let at = 0, place = table * items; at < items; at++, place++)
        out[at] = (out[at] as number) + (worth[codes[place] as number] as number);
    });
    if (this.words)
      for (let at = 0, place = 0; at < items; at++) {
        let sum = 0;
        for (let d = 0; d < this.words; d++, place++) sum += (this.texts[place] as number) * (ofText[d] as number);
        out[at] = (out[at] as number) + sum;
      }
    return out;
  }

  /** One item of a history: what depends on a single value or is linear in texts is summed up for the end. */
  private add(item: number, factors: Float64Array, byCode: Float64Array[], ofText: Float64Array, out: Float64Array): void {
    const count = this.widths.length;
    this.kernels.forEach(({ first, second }, k) => {
      const factor = factors[k] as number;
      if (second === ALONE && first < count) {
        const [row, worth] = [this.row(first, item), byCode[first] as Float64Array];
        for (let code = 0; code < worth.length; code++) worth[code] = (worth[code] as number) + factor * (row[code] as number);
      } else if (second === ALONE && first === count) {
        const start = item * this.words;
        for (let d = 0; d < this.words; d++) ofText[d] = (ofText[d] as number) + factor * (this.texts[start + d] as number);
      } else if (second === ALONE) this.addCubes(item, factor, out);
      else if (first < count && second < count) this.addProduct(item, first, second, factor, out);
      else this.addAny(item, first, second, factor, out);
    });
  }

  /** The similarities of an item with every value of a feature. */
  private row(table: number, item: number): Float32Array {
    const side = this.widths[table] as number;
    const start = (this.starts[table] as number) + (this.codes[table * this.items + item] as number) * side;
    return this.tables.subarray(start, start + side); // tables are symmetric
  }

  private addProduct(item: number, first: number, second: number, factor: number, out: Float64Array): void {
    const { items, codes } = this;
    const [a, b] = [this.row(first, item), this.row(second, item)];
    for (let at = 0, p = first * items, q = second * items; at < items; at++, p++, q++) {
      const value = a[codes[p] as number] as number;
      if (value !== 0) out[at] = (out[at] as number) + factor * value * (b[codes[q] as number] as number);
    }
  }

  private addCubes(item: number, factor: number, out: Float64Array): void {
    const cosines = this.cosinesOf(item);
    for (let at = 0; at < out.length; at++) {
      const cosine = cosines[at] as number;
      if (cosine > 0) out[at] = (out[at] as number) + factor * cosine * cosine * cosine;
    }
  }

  private addAny(item: number, first: number, second: number, factor: number, out: Float64Array): void {
    const [a, b] = [this.alike(first, item), this.alike(second, item)];
    for (let at = 0; at < out.length; at++) out[at] = (out[at] as number) + factor * (a[at] as number) * (b[at] as number);
  }

  /** One similarity of an item with all others. */
  private alike(similarity: number, item: number): Float32Array {
    const { items, codes, widths } = this;
    if (similarity < widths.length) {
      const row = this.row(similarity, item);
      return Float32Array.from({ length: items }, (_, at) => row[codes[similarity * items + at] as number] as number);
    }
    const cosines = this.cosinesOf(item);
    return similarity === widths.length ? cosines : cosines.map((cosine) => Math.max(cosine, 0) ** 3);
  }

  private cosinesOf(item: number): Float32Array {
    const known = this.cosines.get(item);
    if (known !== undefined) return known;
    const { words, texts } = this;
    const own = texts.subarray(item * words, (item + 1) * words);
    const out = new Float32Array(this.items);
    for (let at = 0, place = 0; at < out.length; at++) {
      let sum = 0;
      for (let d = 0; d < words; d++, place++) sum += (texts[place] as number) * (own[d] as number);
      out[at] = sum;
    }
    if (this.cosines.size >= REMEMBERED) this.cosines.clear();
    this.cosines.set(item, out);
    return out;
  }
}

/** What items of a history count for, by how many places they lie back, at every scale, and all of them together. */
function recency(used: number, decays: Float64Array): { weights: Float64Array; totals: Float64Array; used: number } {
  const [weights, totals] = [new Float64Array(used * decays.length), new Float64Array(decays.length)];
  for (let scale = 0; scale < decays.length; scale++)
    for (let back = 0, weight = 1; back < used; back++, weight *= decays[scale] as number) {
      weights[back * decays.length + scale] = weight;
      totals[scale] = (totals[scale] as number) + weight;
    }
  return { weights, totals, used };
}

function lost(): BadRelease {
  return new BadRelease("the ranking of the release leads out of its tables: nothing of it is used");
}
