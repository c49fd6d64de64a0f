/** Draws that everybody can repeat (splitmix64), the same as in Python: which items stand beside the own ones. */
/** The start of the stream that a client learns with. */
export declare function learningStream(seed: number | bigint, client: number): bigint;
/** A number in [0, bound) from the word of a place in a stream. */
export declare function drawnBelow(start: bigint, counter: number, bound: number): number;
