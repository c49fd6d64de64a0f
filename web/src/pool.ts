/** News to choose from, the same for everybody who asks the same: ids, titles, categories, scores and vectors. */
import type { Bytes } from "./bytes.js";
import { BadInput } from "./errors.js";
import { doubles, integers, readSafetensors, texts } from "./safetensors.js";

const MOST = 200_000; // news of a pool

export class Pool {
  private constructor(
    readonly ids: readonly string[],
    readonly titles: readonly string[],
    private readonly names: readonly string[],
    private readonly category: ArrayLike<number>,
    readonly interests: number, // B; 0 where there are none
    readonly scores: Float64Array, // [n, B]
    readonly dim: number, // d; 0 where there are no vectors
    private readonly packed: ArrayLike<number>, // [n, d]
    private readonly scales: Float64Array, // [d]
    /** The name and version of the release that it was made with. */
    readonly release: string,
    /** Whether all news are in it. */
    readonly whole: boolean,
    /** Whether the best of every attention are in it, if not all are. */
    readonly exact: boolean,
  ) {}

  static read(content: Bytes): Pool {
    const file = readSafetensors(content);
    const [ids, titles, names] = [texts(file, "ids"), texts(file, "titles"), texts(file, "categories")];
    const count = ids.length;
    if (count > MOST || titles.length !== count) throw new BadInput(`a pool has ${count} ids and ${titles.length} titles`);
    const category = integers(file, "category", [count]);
    const interests = file.tensors.get("scores")?.shape[1] ?? 0;
    const scores = interests ? doubles(file, "scores", [count, interests]) : new Float64Array(0);
    const dim = file.tensors.get("vectors")?.shape[1] ?? 0;
    const packed = dim ? integers(file, "vectors", [count, dim]) : new Int8Array(0);
    const scales = dim ? doubles(file, "scales", [dim]) : new Float64Array(0);
    const said = (key: string): string => file.metadata.get(key) ?? "";
    const [whole, exact] = [said("whole") === "1", said("exact") === "1"];
    return new Pool(ids, titles, names, category, interests, scores, dim, packed, scales, said("release"), whole, exact);
  }

  get size(): number {
    return this.ids.length;
  }

  categoryOf(at: number): string {
    return this.names[this.category[at] as number] ?? "";
  }

  vector(at: number): Float64Array {
    const out = new Float64Array(this.dim);
    for (let q = 0; q < this.dim; q++) out[q] = (this.packed[at * this.dim + q] as number) * (this.scales[q] as number);
    return out;
  }

  /** The score of every news for a user vector. */
  byVector(user: ArrayLike<number>): Float64Array {
    if (user.length !== this.dim) throw new BadInput(`the pool has vectors of ${this.dim} numbers, not ${user.length}`);
    const scaled = Float64Array.from(this.scales, (scale, q) => scale * (user[q] as number));
    const out = new Float64Array(this.size);
    for (let at = 0, place = 0; at < out.length; at++) {
      let sum = 0;
      for (let q = 0; q < this.dim; q++, place++) sum += (this.packed[place] as number) * (scaled[q] as number);
      out[at] = sum;
    }
    return out;
  }

  /** The score of every news for attention over the interests. */
  byAttention(alpha: readonly number[]): Float64Array {
    if (alpha.length !== this.interests) throw new BadInput(`the pool has ${this.interests} interests, not ${alpha.length}`);
    const out = new Float64Array(this.size);
    for (let at = 0; at < out.length; at++)
      for (let b = 0; b < alpha.length; b++)
        out[at] = (out[at] as number) + (alpha[b] as number) * (this.scores[at * alpha.length + b] as number);
    return out;
  }
}

/** The places of the best news, best first, of equal ones the first; what was read is left out, here and not elsewhere. */
export function best(scores: ArrayLike<number>, ids: readonly string[], read: ReadonlySet<string>, count: number): number[] {
  const places = ids.map((_, at) => at).filter((at) => !read.has(ids[at] as string));
  places.sort((a, b) => (scores[b] as number) - (scores[a] as number) || a - b);
  return places.slice(0, count);
}

export function cosine(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let [ab, aa, bb] = [0, 0, 0];
  for (let q = 0; q < a.length; q++) {
    const [x, y] = [a[q] as number, b[q] as number];
    ab += x * y;
    aa += x * x;
    bb += y * y;
  }
  return aa && bb ? ab / Math.sqrt(aa * bb) : 0;
}
