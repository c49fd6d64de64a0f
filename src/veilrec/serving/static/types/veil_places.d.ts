import { type Content } from "./veil_content.js";
export declare const IN_BASIS = 0.5;
/** What is known of the items along each direction. */
export interface Places {
    readonly directions: number;
    readonly values: Float32Array;
    readonly gains: Float32Array;
    readonly expected: Float32Array;
}
/** Directions of which nothing is known yet; none at all where there are 0. */
export declare function unknownPlaces(items: number, directions: number): Places;
/** The directions of both. */
export declare function bothPlaces(first: Places, second: Places, items: number): Places;
/**
 * From sums [items, directions] with noise of this standard deviation, and how many votes items have [items]: what they
 * say beyond content, and beyond the places that an earlier sum has told.
 */
export declare function placed(sums: ArrayLike<number>, directions: number, noise: number, votes: Float64Array, content: Content, before: Places): Places;
/** The columns of content, and beside them those of places. */
export declare function columnsOf({ items, width, basis }: Content, places: Places): Float32Array;
/** Where each item of a history was used, [n, directions], and what each place counts, so that all keep to the clip. */
export interface Used {
    readonly places: Float64Array;
    readonly share: number;
}
/** The first columns of a table of items, each of deviation 2: the space that places are in; of which nothing is known stays 0. */
export declare class Among {
    private readonly items;
    private readonly directions;
    private readonly recency;
    private readonly columns;
    constructor(values: Float32Array, // [items, directions or more]: content, or what an earlier pass said
    items: number, directions: number, recency: number);
    of(history: ArrayLike<number>): Used;
    /** What a client adds to the sums of places: [items, directions]. */
    told(history: ArrayLike<number>): Float64Array;
}
