/** Ratios of whole numbers, and e^-x between two of them: for decisions that no rounding may touch. */
export interface Fraction {
    readonly top: bigint;
    readonly bottom: bigint;
}
export type Interval = readonly [Fraction, Fraction];
export declare function ratio(top: bigint, bottom?: bigint): Fraction;
export declare const plus: (a: Fraction, b: Fraction) => Fraction;
export declare const minus: (a: Fraction, b: Fraction) => Fraction;
export declare const times: (a: Fraction, b: Fraction) => Fraction;
/** b is above 0. */
export declare const over: (a: Fraction, b: Fraction) => Fraction;
export declare const atMost: (a: Fraction, b: Fraction) => boolean;
export declare const below: (a: Fraction, b: Fraction) => boolean;
export declare function floorOf(a: Fraction): bigint;
/** Bounds of e^-x, closer together than 2^-bits: those that Python's decimal numbers give, digit for digit. */
export declare function expMinus(x: Fraction, bits: number): Interval;
