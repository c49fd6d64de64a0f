export declare const UNITS: number;
export declare const RELATIVE_ERROR: number;
/** Independent uniform 64-bit words. */
export interface Source {
    words(count: number): BigUint64Array;
}
/** The browser's cryptographic generator. */
export declare class SecureSource implements Source {
    words(count: number): BigUint64Array;
}
/** Independent draws of N(0, UNITS^2), rounded to whole numbers. */
export declare function latticeGaussian(source: Source, count: number): number[];
/** Independent Laplace draws of scale UNITS, rounded to whole numbers. */
export declare function latticeLaplace(source: Source, count: number): number[];
/** In lattice units, cut towards zero. */
export declare function toLattice(values: ArrayLike<number>, grid: number): number[];
/** The values plus Gaussian noise on the lattice of step sigma / UNITS. */
export declare function addGaussian(values: ArrayLike<number>, sigma: number, source: Source): number[];
/** The values plus Laplace noise on the lattice of step scale / UNITS. */
export declare function addLaplace(values: ArrayLike<number>, scale: number, source: Source): number[];
