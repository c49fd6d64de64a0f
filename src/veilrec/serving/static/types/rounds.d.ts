/** Rounds of a federation as bytes: the model that comes, and the message that answers it (wire/rounds.py, codec.py, bits.py). */
import { type Bytes } from "./bytes.js";
/** One tensor of the model, known before the first message; all numbers are float32. */
export interface TensorShape {
    readonly name: string;
    readonly shape: readonly number[];
    readonly by_row: boolean;
    readonly learnt: boolean;
}
export interface RoundModel {
    readonly clipNorm: number | null;
    readonly asked: readonly string[];
    readonly tensors: ReadonlyMap<string, Float32Array>;
}
export declare function sizeOf(tensor: TensorShape): number;
/** What a round is about, and its whole model; anything else than `veil` sends is refused. */
export declare function decodeRound(content: Bytes, schema: readonly TensorShape[], number: number): RoundModel;
/** The answer to a round: the tensors that it is about, each whole, numbered among themselves. */
export declare function encodeMessage(parts: ReadonlyMap<string, Float32Array>, schema: readonly TensorShape[], number: number): Bytes;
/** Which items there are in a history, a bit each: the trusted server makes one vote of them. */
export declare function encodeReport(history: readonly number[], items: number, number: number): Bytes;
/** The same report under the number of another round. */
export declare function reportFor(report: Bytes, number: number): Bytes;
