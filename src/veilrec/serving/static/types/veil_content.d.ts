import { type Tensors } from "./safetensors.js";
/** What an item's weight is multiplied by for every place farther back. */
export declare function decaysOf(scales: readonly number[]): Float64Array;
/** The mean row of a table [items, width] over the items before positions, the latest most: [ends, scales * width]. */
export declare function profiles(history: ArrayLike<number>, ends: readonly number[], table: ArrayLike<number>, width: number, decays: Float64Array): Float64Array;
export declare class Content {
    readonly items: number;
    private readonly codes;
    private readonly tables;
    private readonly starts;
    private readonly widths;
    private readonly texts;
    private readonly words;
    private readonly kernels;
    readonly basis: Float32Array;
    readonly width: number;
    private readonly cosines;
    private constructor();
    static read(file: Tensors, items: number): Content;
    get size(): number;
    /** Kernels of one pair. */
    private pair;
    /** Features [candidates, scales * kernels] of candidates before a position of a history; the latest items count. */
    features(history: ArrayLike<number>, end: number, candidates: ArrayLike<number>, decays: Float64Array, latest: number): Float64Array;
    /** The sum of weights times features, of every item after the whole history: as `features`, and much faster. */
    weighed(history: ArrayLike<number>, weights: Float64Array, decays: Float64Array, latest: number): Float64Array;
    /** One item of a history: what depends on a single value or is linear in texts is summed up for the end. */
    private add;
    /** The similarities of an item with every value of a feature. */
    private row;
    private addProduct;
    private addCubes;
    private addAny;
    /** One similarity of an item with all others. */
    private alike;
    private cosinesOf;
}
