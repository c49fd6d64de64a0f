/** The bytes of a query: VRQ1, kind u8, how many numbers u16, the numbers as float32 (an interest: one u16). */
import type { Bytes } from "./bytes.js";
export declare const KINDS: readonly ["vector", "attention", "pooled", "pooled-and-clear", "interest"];
export type Kind = (typeof KINDS)[number];
/** The length of every query of this kind: it says nothing of who asks. */
export declare function queryBytes(kind: Kind, size: number): number;
export declare function encodeQuery(kind: Kind, size: number, values: readonly number[]): Bytes;
