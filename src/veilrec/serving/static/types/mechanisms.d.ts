import { type Source } from "./samplers.js";
export type Noise = "laplace" | "gaussian";
/** A coin that shows true with the probability, rounded up to the next multiple of 2^-64. */
export declare function happens(probability: number, source: Source): boolean;
/** The vector, cut to an L2 norm of at most `clip`. */
export declare function clipped(vector: ArrayLike<number>, clip: number): number[];
/** The place of the largest number; of equal ones the first. */
export declare function strongest(values: ArrayLike<number>): number;
/** The true category with probability e^eps / (e^eps + C - 1), each other one with 1 / (e^eps + C - 1). */
export declare function karyResponse(truth: number, categories: number, epsilon: number, source: Source): number;
/** Attention over basis vectors [B, d]: softmax(u b^T / sqrt(d)); uniform for a vector that is no number. */
export declare function decompose(user: ArrayLike<number>, basis: Float64Array): number[];
export declare function softmax(scores: readonly number[]): number[];
/** Attention within the bound that its sensitivity rests on. */
export declare function clippedAttention(attention: readonly number[], clip: number): number[];
/** Clipped attention with noise. */
export declare function noisyAttention(attention: readonly number[], how: {
    noise: Noise;
    scale: number;
    clip: number;
}, source: Source): number[];
export interface PooledHow {
    readonly centre: Float64Array;
    readonly axes: Float64Array;
    readonly clip: number;
    readonly slots: number;
    readonly sigma: number;
}
/** The sum over the latest clicks of clipped ((vector - centre) @ axes), divided by the number of slots. */
export declare function pooled(clicks: readonly ArrayLike<number>[], how: PooledHow): number[];
/** The same with Gaussian noise. */
export declare function noisyPooled(clicks: readonly ArrayLike<number>[], how: PooledHow, source: Source): number[];
