/** Reads safetensors: every offset is checked before anything is read. */
import { type Bytes } from "./bytes.js";
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
/** All tensors of a file; names without a prototype's, places that follow each other without gap or overlap. */
export declare function readSafetensors(content: Bytes): Tensors;
/** Finite numbers of a tensor in double precision; null stands for a side of any length. */
export declare function doubles(file: Tensors, name: string, shape: readonly (number | null)[]): Float64Array;
/** The same in single precision, for what is large. */
export declare function singles(file: Tensors, name: string, shape: readonly (number | null)[]): Float32Array;
/** Whole numbers of a tensor. */
export declare function integers(file: Tensors, name: string, shape: readonly (number | null)[]): Whole;
/** How long a tensor is on each side; none where there is no such tensor. */
export declare function shapeOf(file: Tensors, name: string): readonly number[];
/** The texts of NAME.offsets and NAME.data. */
export declare function texts(file: Tensors, name: string): string[];
