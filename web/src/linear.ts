/** The little linear algebra that `veil` needs; matrices lie row by row. */

export function dot(a: ArrayLike<number>, b: Float64Array, size: number, from = 0): number {
  let sum = 0;
  for (let at = 0; at < size; at++) sum += (a[from + at] as number) * (b[at] as number);
  return sum;
}

/** [rows, inner] times [inner, columns]. */
export function product(a: Float64Array, b: Float64Array, rows: number, inner: number, columns: number): Float64Array {
  const out = new Float64Array(rows * columns);
  for (let row = 0; row < rows; row++)
    for (let at = 0; at < inner; at++) {
      const value = a[row * inner + at] as number;
      if (value === 0) continue;
      for (let column = 0, p = row * columns, q = at * columns; column < columns; column++, p++, q++)
        out[p] = (out[p] as number) + value * (b[q] as number);
    }
  return out;
}

/** Add factor * x x^T below the diagonal and on it. */
export function addSquare(square: Float64Array, x: Float64Array, from: number, factor: number, size: number): void {
  for (let f = 0; f < size; f++) {
    const value = factor * (x[from + f] as number);
    for (let g = 0, place = f * size; g <= f; g++, place++) square[place] = (square[place] as number) + value * (x[from + g] as number);
  }
}

/** The L of A = L L^T for a symmetric A above 0, of which the lower half is given; in its place (Cholesky). */
export function factored(a: Float64Array, size: number): Float64Array {
  const at = (row: number, column: number): number => a[row * size + column] as number;
  for (let j = 0; j < size; j++) {
    for (let i = j; i < size; i++) {
      let sum = at(i, j);
      for (let k = 0; k < j; k++) sum -= at(i, k) * at(j, k);
      a[i * size + j] = i === j ? Math.sqrt(Math.max(sum, 1e-300)) : sum / at(j, j);
    }
  }
  return a;
}

/** The x of L L^T x = b. */
export function solvedBy(factor: Float64Array, b: Float64Array): Float64Array {
  const size = b.length;
  const at = (row: number, column: number): number => factor[row * size + column] as number;
  const x = b.slice();
  for (let i = 0; i < size; i++) {
    for (let k = 0; k < i; k++) x[i] = (x[i] as number) - at(i, k) * (x[k] as number);
    x[i] = (x[i] as number) / at(i, i);
  }
  for (let i = size - 1; i >= 0; i--) {
    for (let k = i + 1; k < size; k++) x[i] = (x[i] as number) - at(k, i) * (x[k] as number);
    x[i] = (x[i] as number) / at(i, i);
  }
  return x;
}

/** The x of A x = b for a symmetric A above 0, of which the lower half is given, and is lost. */
export function solved(a: Float64Array, b: Float64Array): Float64Array {
  return solvedBy(factored(a, b.length), b);
}
