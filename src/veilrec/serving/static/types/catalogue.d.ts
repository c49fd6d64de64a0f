/** A catalogue that is ranked here: its items, and how they stand after a history that stays. */
import type { Bytes } from "./bytes.js";
import type { Manifest } from "./release.js";
export declare const CATALOGUE_FILES: string[];
export declare class Catalogue {
    readonly ids: readonly string[];
    readonly titles: readonly string[];
    private readonly names;
    private readonly category;
    private readonly ranking;
    private readonly places;
    private constructor();
    static read(manifest: Manifest, items: Bytes, ranking: Bytes): Catalogue;
    get size(): number;
    categoryOf(at: number): string;
    /** Where items of some ids are, in the same order; those that the catalogue does not know are left out. */
    known(ids: readonly string[]): number[];
    /** Of every item, after these, the latest last. */
    scores(history: readonly number[]): Float64Array;
    /** The one of some items whose content an item is most like, if it is like any. */
    likest(at: number, others: readonly number[]): number | null;
    /** What a list rests on, for people. */
    restsOn(history: readonly number[]): string;
}
