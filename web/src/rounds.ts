/** Rounds of a federation as bytes: the model that comes, and the message that answers it (wire/rounds.py, codec.py, bits.py). */
import { joined, text, utf8, type Bytes } from "./bytes.js";
import { BadInput, Declined } from "./errors.js";

const [SEED, SHARES, RANK, CLIP, CODING, TENSORS] = [1, 2, 4, 8, 16, 32] as const;
const [DENSE, ALL_ROWS] = [0, 1] as const;
const MOST_TENSORS = 255;
const [LARGEST_LEARNT, LARGEST_TOLD] = [2 ** 20, 2 ** 24] as const; // weights (core/schema.py)

/** One tensor of the model, known before the first message; all numbers are float32. */
export interface TensorShape {
  readonly name: string;
  readonly shape: readonly number[];
  readonly by_row: boolean;
  readonly learnt: boolean;
}

export interface RoundModel {
  readonly clipNorm: number | null;
  readonly asked: readonly string[]; // the tensors that an answer is about
  readonly tensors: ReadonlyMap<string, Float32Array>;
}

export function sizeOf(tensor: TensorShape): number {
  return tensor.shape.reduce((product, side) => product * side, 1);
}

class Reader {
  private at = 0;
  private readonly view: DataView;
  constructor(private readonly content: Bytes) {
    this.view = new DataView(content.buffer, content.byteOffset, content.byteLength);
  }
  private place(length: number): number {
    if (this.at + length > this.content.length) throw new BadInput("the round ends before its announced end: it is not answered");
    this.at += length;
    return this.at - length;
  }
  u8(): number {
    return this.view.getUint8(this.place(1));
  }
  u32(): number {
    return this.view.getUint32(this.place(4), true);
  }
  f64(): number {
    return this.view.getFloat64(this.place(8), true);
  }
  letters(length: number): string {
    const from = this.place(length);
    return text(this.content.subarray(from, from + length));
  }
  singles(count: number): Float32Array {
    const from = this.place(4 * count);
    const out = Float32Array.from({ length: count }, (_, at) => this.view.getFloat32(from + 4 * at, true));
    if (!out.every(Number.isFinite)) throw new Declined("not finite", "the round has numbers that are not finite: it is not answered");
    return out;
  }
  end(): void {
    if (this.at !== this.content.length) throw new BadInput("there is something behind the round: it is not answered");
  }
}

function odd(why: string): never {
  throw new BadInput(`the round is not one of this federation (${why}): it is not answered`);
}

/** What a round is about, and its whole model; anything else than `veil` sends is refused. */
export function decodeRound(content: Bytes, schema: readonly TensorShape[], number: number): RoundModel {
  const reader = new Reader(content);
  if (reader.letters(4) !== "VRR1") odd("it does not start as one");
  const flags = reader.u8();
  if (flags & (SEED | SHARES | RANK | CODING) || flags >= TENSORS << 1) odd("it asks for parts or codings of tensors");
  const clipNorm = flags & CLIP ? reader.f64() : null;
  if (clipNorm !== null && !(clipNorm > 0 && clipNorm < Infinity)) odd(`clip norm ${clipNorm}`);
  const learnt = schema.filter((tensor) => tensor.learnt).map((tensor) => tensor.name);
  const asked = flags & TENSORS ? readAsked(reader, schema) : learnt;
  if (reader.letters(4) !== "VRM1" || reader.u32() !== number) odd("its model is of another round");
  reader.u32(); // examples, which a model has none of
  if (reader.u8() !== schema.length) odd("its model is not whole");
  const tensors = new Map<string, Float32Array>();
  schema.forEach((tensor, place) => {
    if (reader.u8() !== place || reader.u8() !== (tensor.by_row ? ALL_ROWS : DENSE)) odd(`${tensor.name} is not whole`);
    if (tensor.by_row && reader.u32() !== tensor.shape[0]) odd(`${tensor.name} lacks rows`);
    const values = reader.singles(sizeOf(tensor));
    if (!values.every((value) => Math.abs(value) <= (tensor.learnt ? LARGEST_LEARNT : LARGEST_TOLD)))
      throw new Declined("beyond the bound", `${tensor.name} has weights beyond their bound: the round is not answered`);
    tensors.set(tensor.name, values);
  });
  reader.end();
  return { clipNorm, asked, tensors };
}

function readAsked(reader: Reader, schema: readonly TensorShape[]): string[] {
  const numbers = Array.from({ length: reader.u8() }, () => reader.u8());
  if (numbers.length === 0 || numbers.some((number, at) => at > 0 && number <= (numbers[at - 1] as number))) odd("its tensors are in no order");
  return numbers.map((number) => {
    const tensor = schema[number];
    if (tensor === undefined || !tensor.learnt) return odd("it asks for a tensor that no answer is about");
    return tensor.name;
  });
}

function little(size: number, write: (view: DataView) => void): Bytes {
  const bytes = new Uint8Array(size);
  write(new DataView(bytes.buffer));
  return bytes;
}

/** The answer to a round: the tensors that it is about, each whole, numbered among themselves. */
export function encodeMessage(parts: ReadonlyMap<string, Float32Array>, schema: readonly TensorShape[], number: number): Bytes {
  if (schema.length > MOST_TENSORS) throw new BadInput("a message has at most 255 tensors");
  const head = little(9, (view) => {
    view.setUint32(0, number, true); // then examples, which are not told
    view.setUint8(8, parts.size);
  });
  const encoded: Bytes[] = [utf8("VRM1"), head];
  schema.forEach((tensor, place) => {
    const values = parts.get(tensor.name);
    if (values === undefined) return;
    encoded.push(Uint8Array.of(place, DENSE), little(4 * values.length, (view) => values.forEach((value, at) => view.setFloat32(4 * at, value, true))));
  });
  return joined(...encoded);
}

/** Which items there are in a history, a bit each: the trusted server makes one vote of them. */
export function encodeReport(history: readonly number[], items: number, number: number): Bytes {
  const bits = new Uint8Array(Math.ceil(items / 8));
  for (const item of history) bits[item >> 3] = (bits[item >> 3] as number) | (128 >> (item & 7));
  const head = little(8, (view) => {
    view.setUint32(0, number, true);
    view.setUint32(4, items, true);
  });
  return joined(utf8("VRB1"), head, bits);
}

/** The same report under the number of another round. */
export function reportFor(report: Bytes, number: number): Bytes {
  const again = report.slice();
  new DataView(again.buffer).setUint32(4, number, true);
  return again;
}
