/**
 * How `veil` ranks a catalogue here: by public content, by released sums, and by the own history in its order, which
 * stays. The formulas are those of the client in Python (client/veil_ranker.py and client/veil.py).
 */
import { drawnBelow, learningStream } from "./draws.js";
import { BadRelease } from "./errors.js";
import { addSquare, dot, product, solved } from "./linear.js";
import { doubles, shapeOf, singles, type Tensors } from "./safetensors.js";
import { Content, decaysOf, profiles } from "./veil_content.js";
import { Among, columnsOf, IN_BASIS, type Places } from "./veil_places.js";

const FORMULAS = [1, 2]; // what this code knows; 2: two passes of places
const FEWEST_BEFORE = 4; // items before a target
const TRIES = 20; // to draw an item that was not used
const FURTHER_VOTES = 5;
const OF_ITEM = 3; // popularity features that are of the item alone
const NEWTON_STEPS = 2;

/** What of a history is looked at, and how. */
export interface Reading {
  readonly recency: readonly number[];
  readonly taste_recency: readonly number[];
  readonly popularity_recency: readonly number[];
  readonly place_recency: number;
  readonly place_passes?: number; // 1 where nothing is said
  readonly latest: number;
  readonly targets: number;
  readonly negatives: number;
}

export interface RankingProgram {
  readonly ranks: string;
  readonly formulas: number;
  readonly reading: Reading;
  readonly caution: number;
  readonly draws_seed: number;
}

/** Targets of a history, each with items beside it that were not used: features and scores less those of the target. */
interface Examples {
  readonly rows: number; // targets times items beside each
  readonly beside: number; // items beside a target
  readonly features: Float64Array; // [rows, features]
  readonly byTaste: Float64Array; // [rows]
  readonly candidates: Int32Array; // [targets, 1 + beside]
  readonly tastes: Float64Array; // [targets, tastes]
  readonly byOthers: Float64Array; // [targets, width]: rows of the basis of the targets
}

/** How everybody's numbers should move, by the own examples: what a client of a federation has to say. */
export interface Gradients {
  readonly weights: Float64Array; // [features], in whitened coordinates
  readonly map: Float64Array; // [tastes, width]
}

/** What a model of a federation says, before anything of it is released. */
export interface LearntSoFar {
  readonly popularity: Float64Array; // [items, 2]
  readonly weights: Float64Array; // [features], of the features themselves
  readonly map: Float64Array; // [tastes, width]
  readonly places: Places;
}

export class VeilRanking {
  private readonly basis: Float32Array; // [items, width]: content, then places beyond it
  private readonly width: number;
  private readonly among: readonly Among[]; // of each pass
  private readonly known: Float64Array; // [items, 3]: t, 2 ln(e^t + 5), t above the mean
  private readonly mean: number;
  private readonly decays: Float64Array;
  private readonly tasteDecays: Float64Array;
  private readonly popularityDecays: Float64Array;

  private constructor(
    private readonly content: Content,
    private readonly program: RankingProgram,
    private readonly whitening: Float64Array, // [features, features]
    private readonly popularity: Float64Array, // [items, 2]
    private readonly weights: Float64Array, // [features], everybody's
    private readonly map: Float64Array, // [tastes, width]
    private readonly places: Places,
    private readonly draws: bigint, // the stream that items beside targets are drawn from
  ) {
    this.width = content.width + places.directions;
    this.basis = columnsOf(content, places);
    const passes = program.reading.place_passes ?? 1;
    const [each, scale] = [places.directions / passes, program.reading.place_recency];
    this.among = [content.basis, places.values].slice(0, passes).map((table) => new Among(table, content.items, each, scale));
    const { recency, taste_recency, popularity_recency } = program.reading;
    [this.decays, this.tasteDecays, this.popularityDecays] = [recency, taste_recency, popularity_recency].map(decaysOf) as [
      Float64Array,
      Float64Array,
      Float64Array,
    ];
    let sum = 0;
    for (let at = 0; at < content.items; at++) sum += popularity[2 * at] as number;
    this.mean = sum / Math.max(content.items, 1);
    this.known = new Float64Array(3 * content.items);
    for (let at = 0; at < content.items; at++) this.known.set(this.forms(popularity[2 * at] as number), 3 * at);
  }

  static read(program: RankingProgram, file: Tensors, count: number): VeilRanking {
    if (program.ranks !== "veil" || !FORMULAS.includes(program.formulas))
      throw new BadRelease(`the release ranks in a way that is not known here (${program.ranks}): reload the page`);
    checkReading(program);
    const content = Content.read(file, count);
    const { recency, taste_recency, popularity_recency } = program.reading;
    const features = OF_ITEM + popularity_recency.length + content.size * recency.length;
    const directions = shapeOf(file, "places.values")[1] ?? 0;
    const passes = program.reading.place_passes ?? 1;
    if (FORMULAS[passes - 1] !== program.formulas || directions % passes !== 0)
      throw new BadRelease("the release has passes of places that are not alike: nothing of it is used");
    if (directions / passes > content.width) throw new BadRelease("the release has more places than content: nothing of it is used");
    const width = content.width + directions;
    const placed = (name: string): Float32Array => singles(file, `places.${name}`, [count, directions]);
    return new VeilRanking(
      content,
      program,
      doubles(file, "whitening", [features, features]),
      doubles(file, "learnt.popularity", [count, 2]),
      doubles(file, "learnt.weights", [features]),
      doubles(file, "learnt.map", [1 + taste_recency.length * width, width]),
      { directions, values: placed("values"), gains: placed("gains"), expected: placed("expected") },
      learningStream(program.draws_seed, 0),
    );
  }

  /** What a client of a federation learns with: public content, and the model of a round. */
  static learning(content: Content, reading: Reading, whitening: Float64Array, learnt: LearntSoFar, draws: bigint): VeilRanking {
    const program = { ranks: "veil", formulas: FORMULAS[(reading.place_passes ?? 1) - 1] ?? 0, reading, caution: 0, draws_seed: 0 };
    checkReading(program);
    const { popularity, weights, map, places } = learnt;
    return new VeilRanking(content, program, whitening, popularity, weights, map, places, draws);
  }

  /** The mean direction in which the loss of the own latest items falls (client/veil.py). */
  gradients(history: ArrayLike<number>): Gradients {
    const { rows, beside, features, byTaste, candidates, tastes, byOthers } = this.examples(history);
    const { width, basis, weights } = this;
    const [size, targets, length] = [weights.length, rows / beside, 1 + this.tasteDecays.length * width];
    const scores = byTaste.map((score, row) => score + dot(features, weights, size, row * size));
    const chance = chances(scores, beside);
    const [moved, map, residual] = [new Float64Array(size), new Float64Array(length * width), new Float64Array(width)];
    for (let target = 0; target < targets; target++) {
      residual.fill(0);
      for (let at = 0; at < beside; at++) {
        const row = target * beside + at;
        const [share, item] = [(chance[row] as number) / targets, candidates[target * (1 + beside) + 1 + at] as number];
        for (let f = 0; f < size; f++) moved[f] = (moved[f] as number) - share * (features[row * size + f] as number);
        for (let d = 0; d < width; d++)
          residual[d] = (residual[d] as number) - share * ((basis[item * width + d] as number) - (byOthers[target * width + d] as number));
      }
      for (let a = 0; a < length; a++)
        for (let d = 0; d < width; d++)
          map[a * width + d] = (map[a * width + d] as number) + (tastes[target * length + a] as number) * (residual[d] as number);
    }
    return { weights: product(moved, this.whitening, 1, size, size), map };
  }

  /** How many items of a history the own weights are fitted to. */
  fitted(length: number): number {
    return this.program.caution > 0 ? Math.max(0, Math.min(this.program.reading.targets, length - FEWEST_BEFORE)) : 0;
  }

  /** Of every item, after a history (numbers of items, the latest last). */
  scores(history: ArrayLike<number>): Float64Array {
    const { content, program } = this;
    const weights = this.ownWeights(history);
    const first = OF_ITEM + this.popularityDecays.length;
    const out = content.weighed(history, weights.subarray(first), this.decays, program.reading.latest);
    const context = this.context(history, [history.length]);
    const described = new Float64Array(first);
    for (let at = 0; at < out.length; at++) {
      this.describe(this.known, 3 * at, context, 0, described);
      out[at] = (out[at] as number) + dot(described, weights, first);
    }
    const looked = this.lookedFor(this.tastes(history, [history.length]), 0);
    for (let at = 0; at < out.length; at++) out[at] = (out[at] as number) + dot(this.basis, looked, this.width, at * this.width);
    return out;
  }

  /** How alike the content of two items is: the cosine of their places in content space. */
  alike(one: number, other: number): number {
    const { basis, width } = this.content;
    let [ab, aa, bb] = [0, 0, 0];
    for (let d = 0; d < width; d++) {
      const [x, y] = [basis[one * width + d] as number, basis[other * width + d] as number];
      ab += x * y;
      aa += x * x;
      bb += y * y;
    }
    return aa > 0 && bb > 0 ? ab / Math.sqrt(aa * bb) : 0;
  }

  /** Everybody's weights, moved by Newton steps on the own latest items; a short history moves them little. */
  ownWeights(history: ArrayLike<number>): Float64Array {
    if (this.fitted(history.length) === 0) return this.weights;
    const size = this.weights.length;
    const { rows, beside, features, byTaste } = this.examples(history);
    const white = product(features, this.whitening, rows, size, size);
    const start = Float64Array.from({ length: rows }, (_, row) => dot(features, this.weights, size, row * size) + (byTaste[row] as number));
    const moved = new Float64Array(size);
    for (let step = 0; step < NEWTON_STEPS; step++) {
      const scores = start.map((score, row) => score + dot(white, moved, size, row * size));
      const shift = this.step(white, chances(scores, beside), beside, moved);
      for (let f = 0; f < size; f++) moved[f] = (moved[f] as number) + (shift[f] as number);
    }
    return this.weights.map((weight, f) => weight + dot(this.whitening, moved, size, f * size));
  }

  /** One Newton step: the curvature is that of the softmax over each target's rivals, held by the caution. */
  private step(white: Float64Array, chance: Float64Array, beside: number, moved: Float64Array): Float64Array {
    const [size, rows] = [moved.length, chance.length];
    const curvature = new Float64Array(size * size);
    const slope = moved.map((value) => -this.program.caution * value);
    const mean = new Float64Array(size);
    for (let row = 0; row < rows; row++) {
      if (row % beside === 0) mean.fill(0);
      const [own, place] = [chance[row] as number, row * size];
      for (let f = 0; f < size; f++) mean[f] = (mean[f] as number) + own * (white[place + f] as number);
      addSquare(curvature, white, place, own, size);
      if (row % beside === beside - 1) {
        addSquare(curvature, mean, 0, -1, size);
        for (let f = 0; f < size; f++) slope[f] = (slope[f] as number) - (mean[f] as number);
      }
    }
    for (let f = 0; f < size; f++) curvature[f * size + f] = (curvature[f * size + f] as number) + this.program.caution;
    return solved(curvature, slope);
  }

  private examples(history: ArrayLike<number>): Examples {
    const { content, program, known, popularity, basis, width } = this;
    const { targets, negatives, latest } = program.reading;
    const ends: number[] = [];
    for (let end = history.length - 1; end >= Math.max(FEWEST_BEFORE, history.length - targets); end--) ends.push(end);
    const size = this.weights.length;
    const first = OF_ITEM + this.popularityDecays.length;
    const kernels = size - first;
    const features = new Float64Array(ends.length * negatives * size);
    const byTaste = new Float64Array(ends.length * negatives);
    const [tastes, contexts, byOthers] = [this.tastes(history, ends), this.context(history, ends), this.withoutOwn(history, ends)];
    const ownVote = 1 / Math.sqrt(history.length);
    const [described, ofTarget] = [new Float64Array(first), new Float64Array(first)];
    const drawn = this.unused(history, ends);
    ends.forEach((end, target) => {
      const candidates = drawn.subarray(target * (1 + negatives), (target + 1) * (1 + negatives));
      const alike = content.features(history, end, candidates, this.decays, latest);
      const own = candidates[0] as number;
      // As the others see it: without the own vote, which the items beside it did not get.
      const forms = this.forms((popularity[2 * own] as number) - ownVote * (popularity[2 * own + 1] as number));
      this.describe(forms, 0, contexts, target, ofTarget);
      const looked = this.lookedFor(tastes, target);
      const tasteOfTarget = dot(byOthers, looked, width, target * width);
      for (let beside = 1; beside <= negatives; beside++) {
        const row = target * negatives + beside - 1;
        const item = candidates[beside] as number;
        this.describe(known, 3 * item, contexts, target, described);
        for (let f = 0; f < first; f++) features[row * size + f] = (described[f] as number) - (ofTarget[f] as number);
        for (let k = 0; k < kernels; k++)
          features[row * size + first + k] = (alike[beside * kernels + k] as number) - (alike[k] as number);
        byTaste[row] = dot(basis, looked, width, item * width) - tasteOfTarget;
      }
    });
    return { rows: byTaste.length, beside: negatives, features, byTaste, candidates: drawn, tastes, byOthers };
  }

  /** Targets, each followed by items that are not in the history, as far as some are found: [ends, 1 + negatives]. */
  private unused(history: ArrayLike<number>, ends: readonly number[]): Int32Array {
    const { negatives } = this.program.reading;
    const used = new Uint8Array(this.content.items);
    for (let at = 0; at < history.length; at++) used[history[at] as number] = 1;
    const out = new Int32Array(ends.length * (1 + negatives));
    const start = this.draws;
    let counter = 0;
    ends.forEach((end, target) => {
      out[target * (1 + negatives)] = history[end] as number;
      for (let beside = 1; beside <= negatives; beside++)
        for (let tried = 0; tried < TRIES; tried++) {
          const item = drawnBelow(start, counter++, this.content.items);
          out[target * (1 + negatives) + beside] = item;
          if (used[item] === 0) break;
        }
    });
    return out;
  }

  /** t, 2 ln(e^t + 5), and t above that of the mean item. */
  private forms(estimate: number): [number, number, number] {
    return [estimate, 2 * Math.log(Math.exp(estimate) + FURTHER_VOTES), estimate - this.mean];
  }

  /** How popular the items before positions were, at every recency scale: [ends, scales]. */
  private context(history: ArrayLike<number>, ends: readonly number[]): Float64Array {
    const above = Float64Array.from({ length: this.content.items }, (_, at) => (this.known[3 * at + 2] as number) - 1);
    return profiles(history, ends, above, 1, this.popularityDecays);
  }

  /** Popularity features of an item whose forms stand at a place of `forms`, in the context of a target. */
  private describe(forms: ArrayLike<number>, place: number, contexts: Float64Array, target: number, out: Float64Array): void {
    const scales = this.popularityDecays.length;
    const above = forms[place + 2] as number;
    out[0] = forms[place] as number;
    out[1] = forms[place + 1] as number;
    out[2] = (above * above) / 3;
    for (let scale = 0; scale < scales; scale++) out[OF_ITEM + scale] = above * (contexts[target * scales + scale] as number);
  }

  /** Where contexts lie among items, at every scale, after a constant: [ends, tastes]. */
  private tastes(history: ArrayLike<number>, ends: readonly number[]): Float64Array {
    const means = profiles(history, ends, this.basis, this.width, this.tasteDecays);
    const length = this.tasteDecays.length * this.width;
    const out = new Float64Array(ends.length * (1 + length));
    ends.forEach((_, target) => {
      out[target * (1 + length)] = 0.5;
      out.set(means.subarray(target * length, (target + 1) * length), target * (1 + length) + 1);
    });
    return out;
  }

  /** What the taste of a target looks for among items: [width]. */
  private lookedFor(tastes: Float64Array, target: number): Float64Array {
    const length = 1 + this.tasteDecays.length * this.width;
    return product(tastes.subarray(target * length, (target + 1) * length), this.map, 1, length, this.width);
  }

  /** Rows of the basis of the targets, without what this history itself has added to the sums: [ends, width]. */
  private withoutOwn(history: ArrayLike<number>, ends: readonly number[]): Float64Array {
    const { basis, width, among, content } = this;
    const { directions, gains, expected } = this.places;
    const out = new Float64Array(ends.length * width);
    ends.forEach((end, target) => {
      for (let d = 0; d < width; d++) out[target * width + d] = basis[(history[end] as number) * width + d] as number;
    });
    const each = directions / among.length;
    among.forEach((table, pass) => {
      const { places, share } = table.of(history);
      ends.forEach((end, target) => {
        for (let d = 0; d < each; d++) {
          const [known, at] = [(history[end] as number) * directions + pass * each + d, target * width + content.width + pass * each + d];
          const own = (places[end * each + d] as number) - (expected[known] as number);
          out[at] = (out[at] as number) - IN_BASIS * (gains[known] as number) * share * own;
        }
      });
    });
    return out;
  }
}

function checkReading(program: RankingProgram): void {
  const { recency, taste_recency, popularity_recency, place_recency, place_passes, latest, targets, negatives } = program.reading ?? {};
  const scales = [recency, taste_recency, popularity_recency, [place_recency]];
  const good =
    scales.every((each) => Array.isArray(each) && each.length <= 32 && each.every((scale) => scale > 0 && scale <= 1e6)) &&
    [undefined, 1, 2].includes(place_passes) &&
    [latest, targets, negatives].every((count) => Number.isSafeInteger(count) && count >= 1 && count <= 10_000) &&
    Number.isFinite(program.caution) &&
    program.caution >= 0 &&
    Number.isSafeInteger(program.draws_seed);
  if (!good) throw new BadRelease("the release says how it ranks in a way that is not known here: nothing of it is used");
}

/** Softmax over the items beside a target, whose own score is 0: [rows]. */
function chances(scores: Float64Array, beside: number): Float64Array {
  const out = new Float64Array(scores.length);
  for (let from = 0; from < scores.length; from += beside) {
    let highest = 0;
    for (let at = from; at < from + beside; at++) highest = Math.max(highest, scores[at] as number);
    let total = Math.exp(-highest);
    for (let at = from; at < from + beside; at++) total += out[at] = Math.exp((scores[at] as number) - highest);
    for (let at = from; at < from + beside; at++) out[at] = (out[at] as number) / total;
  }
  return out;
}
