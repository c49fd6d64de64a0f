/** From a history to a user vector: the small program that a release carries beside its weights, in doubles. */
import { BadRelease } from "./errors.js";
import { softmax } from "./mechanisms.js";
import type { Tensors } from "./safetensors.js";

export interface Program {
  readonly user: Layer;
  readonly empty: string | null;
  readonly dim: number;
  readonly longest: number;
  readonly attention: boolean;
  readonly ranks_with: "whole" | "interests";
}

export interface Layer {
  readonly op: string;
  readonly of?: Layer | readonly Layer[];
  readonly start?: Layer | null;
  readonly weights?: string;
  readonly count?: number;
  readonly heads?: number;
  readonly parts?: readonly number[];
}

type Vector = Float64Array;
type Rows = readonly Vector[];

const DEEPEST = 16;
const SMALLEST = 1e-12;
const OPS = [
  "history",
  "latest",
  "self-attention",
  "attend",
  "gru",
  "linear",
  "concat",
  "stack",
  "scale",
  "public-head",
];

interface Weight {
  readonly rows: number;
  readonly columns: number;
  readonly values: Vector;
}

/** w x (+ bias). */
function apply(weight: Weight, x: Vector, bias?: Vector): Vector {
  const { rows, columns, values } = weight;
  if (x.length !== columns) throw new BadRelease(`the encoder of the release meets ${x.length} numbers, not ${columns}`);
  const out = new Float64Array(rows);
  for (let row = 0, at = 0; row < rows; row++) {
    let sum = bias === undefined ? 0 : (bias[row] as number);
    for (let q = 0; q < columns; q++, at++) sum += (values[at] as number) * (x[q] as number);
    out[row] = sum;
  }
  return out;
}

function dot(a: Vector, b: Vector): number {
  let sum = 0;
  for (let q = 0; q < a.length; q++) sum += (a[q] as number) * (b[q] as number);
  return sum;
}

function weighed(rows: Rows, weights: readonly number[], width: number): Vector {
  const out = new Float64Array(width);
  rows.forEach((row, at) => {
    for (let q = 0; q < width; q++) out[q] = (out[q] as number) + (weights[at] as number) * (row[q] as number);
  });
  return out;
}

const sigmoid = (x: number): number => 0.5 * (1 + Math.tanh(0.5 * x));

/** A program with its weights: a user vector of any history, also of an empty one. */
export class UserEncoder {
  private readonly weights = new Map<string, Weight>();

  constructor(
    readonly program: Program,
    file: Tensors,
  ) {
    for (const [name, { dtype, shape, values }] of file.tensors) {
      if (dtype !== "F32" && dtype !== "F64") continue;
      const rows = shape[0] ?? 1;
      const columns = shape.slice(1).reduce((product, side) => product * side, 1);
      this.weights.set(name, { rows, columns, values: Float64Array.from(values as Float32Array) });
    }
    check(program.user, 0);
    const { dim, longest } = program;
    if (!Number.isSafeInteger(dim) || !Number.isSafeInteger(longest) || dim < 1 || longest < 1)
      throw new BadRelease("the encoder of the release has no dimensions, or reads no clicks");
    try {
      for (const clicks of [[], [new Float64Array(dim)]]) this.user(clicks); // what does not run on these does not run at all
    } catch (error) {
      if (error instanceof BadRelease) throw error;
      throw new BadRelease("the encoder of the release is not whole: get it again");
    }
  }

  /** The clicks' vectors, oldest first -> [dim]; only the latest ones count. */
  user(clicks: readonly ArrayLike<number>[]): Vector {
    const { dim, longest, empty } = this.program;
    const recent = clicks.slice(-longest).map((click) => Float64Array.from(click));
    if (recent.some((click) => click.length !== dim)) throw new BadRelease(`clicks are vectors of ${dim} numbers`);
    const user = empty !== null && recent.length === 0 ? this.weight(empty).values : this.vector(this.program.user, recent);
    if (user.length !== dim) throw new BadRelease(`the encoder of the release gives ${user.length} and not ${dim} numbers`);
    return user;
  }

  /** Basis vectors [B, dim], one after another; null where the model has none. */
  get basis(): Vector | null {
    return this.program.attention ? this.weight("basis").values : null;
  }

  private weight(name: string): Weight {
    const weight = this.weights.get(name);
    if (weight === undefined) throw new BadRelease(`the encoder of the release names a tensor ${name}, and there is none`);
    return weight;
  }

  private only(layer: Layer): Layer {
    if (layer.of === undefined || Array.isArray(layer.of)) throw unknown();
    return layer.of as Layer;
  }

  private rows(layer: Layer, history: Rows): Rows {
    switch (layer.op) {
      case "history":
        return history;
      case "latest":
        return this.rows(this.only(layer), history).slice(-(layer.count ?? 0));
      case "self-attention":
        return this.selfAttention(layer, this.rows(this.only(layer), history));
      case "stack":
        return this.parts(layer).map((part) => this.vector(part, history));
      default:
        throw unknown();
    }
  }

  private vector(layer: Layer, history: Rows): Vector {
    switch (layer.op) {
      case "attend":
        return this.attend(layer, this.rows(this.only(layer), history));
      case "gru":
        return this.gru(layer, history);
      case "linear":
        return apply(
          this.weight(`${layer.weights}.weight`),
          this.vector(this.only(layer), history),
          this.weight(`${layer.weights}.bias`).values,
        );
      case "concat":
        return Float64Array.from(this.parts(layer).flatMap((part) => Array.from(this.vector(part, history))));
      case "scale": {
        const scale = this.weight(`${layer.weights}`).values[0] as number;
        return this.vector(this.only(layer), history).map((value) => value * scale);
      }
      case "public-head":
        return this.publicHead(layer, history);
      default:
        throw unknown();
    }
  }

  private parts(layer: Layer): readonly Layer[] {
    if (!Array.isArray(layer.of)) throw unknown();
    return layer.of as readonly Layer[];
  }

  private selfAttention(layer: Layer, values: Rows): Rows {
    const heads = layer.heads as number;
    const projections = this.weight(`${layer.weights}.projections.weight`);
    if (!Number.isSafeInteger(heads) || heads < 1 || projections.rows % (3 * heads) !== 0)
      throw new BadRelease(`the encoder of the release has ${projections.rows} projections, which ${heads} heads cannot share`);
    const width = projections.rows / (3 * heads);
    const projected = values.map((value) => apply(projections, value)); // queries, keys, values; each heads x width
    const part = (row: Vector, kind: number, head: number): Vector =>
      row.subarray((kind * heads + head) * width, (kind * heads + head + 1) * width);
    return projected.map((row) => {
      const out = new Float64Array(heads * width);
      for (let head = 0; head < heads; head++) {
        const query = part(row, 0, head);
        const scores = projected.map((other) => dot(query, part(other, 1, head)) / Math.sqrt(width));
        const content = projected.map((other) => part(other, 2, head));
        out.set(weighed(content, softmax(scores), width), head * width);
      }
      return out;
    });
  }

  private attend(layer: Layer, values: Rows): Vector {
    const hidden = this.weight(`${layer.weights}.hidden.weight`);
    const bias = this.weight(`${layer.weights}.hidden.bias`).values;
    const query = this.weight(`${layer.weights}.query.weight`).values;
    const scores = values.map((value) => dot(apply(hidden, value, bias).map(Math.tanh), query));
    return weighed(values, softmax(scores), hidden.columns);
  }

  private gru(layer: Layer, history: Rows): Vector {
    const inputs = this.weight(`${layer.weights}.inputs.weight`);
    const inputBias = this.weight(`${layer.weights}.inputs.bias`).values;
    const recurrent = this.weight(`${layer.weights}.recurrent.weight`);
    const bias = this.weight(`${layer.weights}.recurrent.bias`).values;
    const size = recurrent.columns;
    let state = layer.start ? this.vector(layer.start, history) : new Float64Array(size);
    for (const value of this.rows(this.only(layer), history)) {
      const step = apply(inputs, value, inputBias);
      const old = apply(recurrent, state, bias);
      const next = new Float64Array(size);
      for (let q = 0; q < size; q++) {
        const reset = sigmoid((step[q] as number) + (old[q] as number));
        const update = sigmoid((step[size + q] as number) + (old[size + q] as number));
        const fresh = Math.tanh((step[2 * size + q] as number) + reset * (old[2 * size + q] as number));
        next[q] = fresh + update * ((state[q] as number) - fresh);
      }
      state = next;
    }
    return state;
  }

  private publicHead(layer: Layer, history: Rows): Vector {
    const parts = layer.parts ?? [];
    const width = parts.reduce((a, b) => a + b, 0);
    const scales = this.weight("scales").values;
    const taste = this.weight("taste").values;
    const mean = weighed(history, history.map(() => 1 / history.length), width);
    const sentence = mean.subarray(0, parts[0] ?? 0);
    const norm = Math.max(Math.sqrt(dot(sentence, sentence)), SMALLEST);
    const out = new Float64Array(width + taste.length);
    let at = 0;
    parts.forEach((count, part) => {
      for (let q = 0; q < count; q++, at++)
        out[at] = ((mean[at] as number) / (part === 0 ? norm : 1)) * (scales[part] as number);
    });
    out.set(taste, width);
    return out;
  }
}

function unknown(): BadRelease {
  return new BadRelease("the encoder of the release has a layer that this client does not know: reload the page");
}

/** Refuse a program that this client does not understand, before anything is encoded with it. */
function check(layer: Layer, depth: number): void {
  if (depth > DEEPEST || typeof layer !== "object" || layer === null || !OPS.includes(layer.op)) throw unknown();
  const inner = layer.of === undefined ? [] : Array.isArray(layer.of) ? (layer.of as readonly Layer[]) : [layer.of as Layer];
  for (const part of layer.start ? [...inner, layer.start] : inner) check(part, depth + 1);
}
