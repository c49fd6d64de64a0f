/** Reads safetensors: every offset is checked before anything is read. */
import { text, type Bytes } from "./bytes.js";
import { BadInput } from "./errors.js";

export type Dtype = "F64" | "F32" | "F16" | "I64" | "I32" | "I16" | "U16" | "I8" | "U8";
export type Whole = Int32Array | Int16Array | Uint16Array | Int8Array | Uint8Array;
export type Values = Float64Array | Float32Array | BigInt64Array | Whole;

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
const WIDTHS: Record<Dtype, number> = { F64: 8, F32: 4, F16: 2, I64: 8, I32: 4, I16: 2, U16: 2, I8: 1, U8: 1 };
const VIEWS: Record<Dtype, new (buffer: ArrayBuffer) => Values> = {
  F64: Float64Array,
  F32: Float32Array,
  F16: Uint16Array, // as bits: see `halves`
  I64: BigInt64Array,
  I32: Int32Array,
  I16: Int16Array,
  U16: Uint16Array,
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

const POWERS = Float64Array.from({ length: 32 }, (_, exponent) => (exponent === 31 ? Infinity : 2 ** (exponent - 25)));

/** Numbers of 16 bits: a sign, five bits of exponent, ten of fraction. */
function halves(bits: Uint16Array): Float32Array {
  const out = new Float32Array(bits.length);
  for (let at = 0; at < bits.length; at++) {
    const word = bits[at] as number;
    const exponent = (word >> 10) & 31;
    const fraction = word & 1023;
    const size = exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * (POWERS[exponent] as number);
    out[at] = word & 0x8000 ? -size : size;
  }
  return out;
}

function numbersOf(file: Tensors, name: string, shape: readonly (number | null)[]): Float64Array | Float32Array {
  const { dtype, values } = named(file, name, shape);
  if (dtype !== "F64" && dtype !== "F32" && dtype !== "F16") throw new BadInput(`tensor ${name} is ${dtype}: floats are wanted`);
  const numbers = dtype === "F16" ? halves(values as Uint16Array) : (values as Float32Array | Float64Array);
  for (let at = 0; at < numbers.length; at++)
    if (!Number.isFinite(numbers[at])) throw new BadInput(`tensor ${name} has numbers that are not finite`);
  return numbers;
}

/** Finite numbers of a tensor in double precision; null stands for a side of any length. */
export function doubles(file: Tensors, name: string, shape: readonly (number | null)[]): Float64Array {
  return Float64Array.from(numbersOf(file, name, shape));
}

/** The same in single precision, for what is large. */
export function singles(file: Tensors, name: string, shape: readonly (number | null)[]): Float32Array {
  const numbers = numbersOf(file, name, shape);
  return numbers instanceof Float32Array ? numbers : Float32Array.from(numbers);
}

/** Whole numbers of a tensor. */
export function integers(file: Tensors, name: string, shape: readonly (number | null)[]): Whole {
  const { dtype, values } = named(file, name, shape);
  if (dtype === "F64" || dtype === "F32" || dtype === "F16") throw new BadInput(`tensor ${name} is ${dtype}: whole numbers are wanted`);
  if (dtype !== "I64") return values as Whole;
  const wide = values as BigInt64Array;
  if (!wide.every((value) => BigInt.asIntN(32, value) === value)) throw new BadInput(`tensor ${name} has numbers beyond 32 bits`);
  return Int32Array.from(wide, Number);
}

/** How long a tensor is on each side; none where there is no such tensor. */
export function shapeOf(file: Tensors, name: string): readonly number[] {
  return file.tensors.get(name)?.shape ?? [];
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
