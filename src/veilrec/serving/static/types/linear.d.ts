/** The little linear algebra that `veil` needs; matrices lie row by row. */
export declare function dot(a: ArrayLike<number>, b: Float64Array, size: number, from?: number): number;
/** [rows, inner] times [inner, columns]. */
export declare function product(a: Float64Array, b: Float64Array, rows: number, inner: number, columns: number): Float64Array;
/** Add factor * x x^T below the diagonal and on it. */
export declare function addSquare(square: Float64Array, x: Float64Array, from: number, factor: number, size: number): void;
/** The L of A = L L^T for a symmetric A above 0, of which the lower half is given; in its place (Cholesky). */
export declare function factored(a: Float64Array, size: number): Float64Array;
/** The x of L L^T x = b. */
export declare function solvedBy(factor: Float64Array, b: Float64Array): Float64Array;
/** The x of A x = b for a symmetric A above 0, of which the lower half is given, and is lost. */
export declare function solved(a: Float64Array, b: Float64Array): Float64Array;
