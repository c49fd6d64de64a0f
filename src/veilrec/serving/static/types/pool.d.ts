/** News to choose from, the same for everybody who asks the same: ids, titles, categories, scores and vectors. */
import type { Bytes } from "./bytes.js";
export declare class Pool {
    readonly ids: readonly string[];
    readonly titles: readonly string[];
    private readonly names;
    private readonly category;
    readonly interests: number;
    readonly scores: Float64Array;
    readonly dim: number;
    private readonly packed;
    private readonly scales;
    /** The name and version of the release that it was made with. */
    readonly release: string;
    /** Whether all news are in it. */
    readonly whole: boolean;
    /** Whether the best of every attention are in it, if not all are. */
    readonly exact: boolean;
    private constructor();
    static read(content: Bytes): Pool;
    get size(): number;
    categoryOf(at: number): string;
    vector(at: number): Float64Array;
    /** The score of every news for a user vector. */
    byVector(user: ArrayLike<number>): Float64Array;
    /** The score of every news for attention over the interests. */
    byAttention(alpha: readonly number[]): Float64Array;
}
/** The places of the best news, best first, of equal ones the first; what was read is left out, here and not elsewhere. */
export declare function best(scores: ArrayLike<number>, ids: readonly string[], read: ReadonlySet<string>, count: number): number[];
export declare function cosine(a: ArrayLike<number>, b: ArrayLike<number>): number;
