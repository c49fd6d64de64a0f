/** Reads safetensors: every offset is checked before anything is read. */
import { text, type Bytes } from "./bytes.js";
import { BadInput } from "./errors.js";

export type Dtype = "F64" | "F32" | "I64" | "I32" | "I8" | "U8";
export type Values = Float64Array | Float32Array | BigInt64Array | Int32Array | Int8Array | Uint8Array;

export interface Tensor {
  readonly dtype: Dtype;
  readonly shape: readonly number[];
  readonly values: Values;
}

export interface Tensors {
  readonly metadata: ReadonlyMap<string, string>;
  readonly tensors: ReadonlyMap<string, Tensor>;
}

const LONGEST_HEADER = 4_000_000;
const WIDTHS: Record<Dtype, number> = { F64: 8, F32: 4, I64: 8, I32: 4, I8: 1, U8: 1 };
const VIEWS: Record<Dtype, new (buffer: ArrayBuffer) => Values> = {
  F64: Float64Array,
  F32: Float32Array,
  I64: BigInt64Array,
  I32: Int32Array,
  I8: Int8Array,
  U8: Uint8Array,
};

function fail(why: string): never {
  throw new BadInput(`not a safetensors file: ${why}`);
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isSize(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

function headerOf(content: Bytes): [Record<string, unknown>, number] {
  if (content.length < 8) fail("it is shorter than its header");
  const view = new DataView(content.buffer, content.byteOffset, content.byteLength);
  const length = view.getBigUint64(0, true);
  if (length > LONGEST_HEADER || 8 + Number(length) > content.length) fail("its header is longer than the file");
  const begin = 8 + Number(length);
  let header: unknown;
  try {
    header = JSON.parse(text(content.subarray(8, begin)));
  } catch {
    fail("its header is no JSON");
  }
  if (!isObject(header)) fail("its header is no object");
  return [header, begin];
}

function tensorOf(name: string, entry: unknown, content: Bytes, begin: number): [Tensor, [number, number]] {
  if (!isObject(entry)) fail(`${name} is no object`);
  const { dtype, shape, data_offsets: offsets } = entry;
  if (typeof dtype !== "string" || !Object.hasOwn(WIDTHS, dtype)) fail(`${name} has a type that is not read here`);
  const kind = dtype as Dtype;
  if (!Array.isArray(shape) || shape.length > 4 || !shape.every(isSize)) fail(`${name} has no shape`);
  if (!Array.isArray(offsets) || offsets.length !== 2 || !offsets.every(isSize)) fail(`${name} has no place`);
  const [from, to] = offsets as [number, number];
  const size = (shape as number[]).reduce((product, side) => product * side, 1);
  if (!Number.isSafeInteger(size) || to - from !== size * WIDTHS[kind] || begin + to > content.length)
    fail(`${name} lies outside of the file, or has another size than its shape`);
  // A copy: a view would have to start at a multiple of the width.
  const copy = content.slice(begin + from, begin + to);
  const made: Tensor = { dtype: kind, shape: shape as number[], values: new VIEWS[kind](copy.buffer) };
  return [made, [from, to]];
}

/** All tensors of a file; names without a prototype's, places that follow each other without gap or overlap. */
export function readSafetensors(content: Bytes): Tensors {
  const [header, begin] = headerOf(content);
  const metadata = new Map<string, string>();
  const tensors = new Map<string, Tensor>();
  const places: [number, number][] = [];
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") {
      if (!isObject(entry)) fail("its metadata is no object");
      for (const [key, value] of Object.entries(entry)) {
        if (typeof value !== "string") fail("its metadata is not of texts");
        metadata.set(key, value);
      }
      continue;
    }
    const [tensor, place] = tensorOf(name, entry, content, begin);
    tensors.set(name, tensor);
    places.push(place);
  }
  places.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let end = 0;
  for (const [from, to] of places) {
    if (from !== end) fail("its tensors overlap, or leave gaps");
    end = to;
  }
  if (begin + end !== content.length) fail("there is something behind its tensors");
  return { metadata, tensors };
}

function named(file: Tensors, name: string, shape: readonly (number | null)[]): Tensor {
  const tensor = file.tensors.get(name);
  if (tensor === undefined) throw new BadInput(`there is no tensor ${name}`);
  if (tensor.shape.length !== shape.length || shape.some((side, at) => side !== null && side !== tensor.shape[at]))
    throw new BadInput(`tensor ${name} has shape [${tensor.shape.join(", ")}] and not [${shape.join(", ")}]`);
  return tensor;
}

/** Finite numbers of a tensor in double precision; null stands for a side of any length. */
export function doubles(file: Tensors, name: string, shape: readonly (number | null)[]): Float64Array {
  const { dtype, values } = named(file, name, shape);
  if (dtype !== "F64" && dtype !== "F32") throw new BadInput(`tensor ${name} is ${dtype}: floats are wanted`);
  const numbers = Float64Array.from(values as Float32Array | Float64Array);
  if (!numbers.every(Number.isFinite)) throw new BadInput(`tensor ${name} has numbers that are not finite`);
  return numbers;
}

/** Whole numbers of a tensor. */
export function integers(file: Tensors, name: string, shape: readonly (number | null)[]): Int32Array | Int8Array {
  const { dtype, values } = named(file, name, shape);
  if (dtype !== "I32" && dtype !== "I8") throw new BadInput(`tensor ${name} is ${dtype}: I32 or I8 is wanted`);
  return values as Int32Array | Int8Array;
}

/** The texts of NAME.offsets and NAME.data. */
export function texts(file: Tensors, name: string): string[] {
  const offsets = integers(file, `${name}.offsets`, [null]);
  const { dtype, values } = named(file, `${name}.data`, [null]);
  if (dtype !== "U8") throw new BadInput(`tensor ${name}.data is ${dtype}: bytes are wanted`);
  const data = values as Uint8Array;
  if (offsets.length === 0 || offsets[0] !== 0 || offsets[offsets.length - 1] !== data.length)
    throw new BadInput(`the texts of ${name} do not fill their bytes`);
  const found: string[] = [];
  for (let at = 1; at < offsets.length; at++) {
    const [from, to] = [offsets[at - 1] as number, offsets[at] as number];
    if (to < from) throw new BadInput(`the texts of ${name} run backwards`);
    found.push(text(data.subarray(from, to)));
  }
  return found;
}
