/** Ratios of whole numbers, and e^-x between two of them: for decisions that no rounding may touch. */

export interface Fraction {
  readonly top: bigint;
  readonly bottom: bigint; // above 0
}

export type Interval = readonly [Fraction, Fraction];

function gcd(a: bigint, b: bigint): bigint {
  let [x, y] = [a < 0n ? -a : a, b];
  while (y) [x, y] = [y, x % y];
  return x;
}

export function ratio(top: bigint, bottom: bigint = 1n): Fraction {
  const shared = gcd(top, bottom);
  return { top: top / shared, bottom: bottom / shared };
}

export const plus = (a: Fraction, b: Fraction): Fraction =>
  ratio(a.top * b.bottom + b.top * a.bottom, a.bottom * b.bottom);
export const minus = (a: Fraction, b: Fraction): Fraction =>
  ratio(a.top * b.bottom - b.top * a.bottom, a.bottom * b.bottom);
export const times = (a: Fraction, b: Fraction): Fraction => ratio(a.top * b.top, a.bottom * b.bottom);
/** b is above 0. */
export const over = (a: Fraction, b: Fraction): Fraction => ratio(a.top * b.bottom, a.bottom * b.top);
export const atMost = (a: Fraction, b: Fraction): boolean => a.top * b.bottom <= b.top * a.bottom;
export const below = (a: Fraction, b: Fraction): boolean => a.top * b.bottom < b.top * a.bottom;

export function floorOf(a: Fraction): bigint {
  const whole = a.top / a.bottom;
  return a.top < 0n && whole * a.bottom !== a.top ? whole - 1n : whole;
}

/** top / bottom, both at least 0, to the nearest whole number; of two, the even one. */
function nearest(top: bigint, bottom: bigint): bigint {
  const whole = top / bottom;
  const twice = 2n * (top - whole * bottom);
  return twice > bottom || (twice === bottom && whole % 2n === 1n) ? whole + 1n : whole;
}

/** A number above 0 in so many significant digits: digits * 10^power. */
function significant(value: Fraction, digits: number): { digits: bigint; power: number } {
  let power = value.top.toString().length - value.bottom.toString().length - digits;
  for (;;) {
    const scaled =
      power < 0
        ? nearest(value.top * 10n ** BigInt(-power), value.bottom)
        : nearest(value.top, value.bottom * 10n ** BigInt(power));
    const length = scaled.toString().length;
    if (length === digits) return { digits: scaled, power };
    power += length > digits ? 1 : -1;
  }
}

function decimal(value: { digits: bigint; power: number }): Fraction {
  const ten = 10n ** BigInt(Math.abs(value.power));
  return value.power < 0 ? ratio(value.digits, ten) : ratio(value.digits * ten);
}

/** e^-x for x >= 0, off by less than 2^-bits. */
function expNear(x: Fraction, bits: bigint): Fraction {
  // e^-x = (e^-(x / 2^k))^(2^k), with x / 2^k below 1/2, so that the series alternates and falls.
  let halvings = 0n;
  while (!below(x, ratio(1n << halvings, 2n))) halvings++;
  const precision = bits + 2n * halvings + 32n;
  const one = 1n << precision;
  const small = (x.top << (precision - halvings)) / x.bottom;
  let [sum, term, count] = [one, one, 0n];
  while (term !== 0n) {
    count++;
    term = -((term * small) >> precision) / count;
    sum += term;
  }
  for (let step = 0n; step < halvings; step++) sum = (sum * sum) >> precision;
  return ratio(sum, one);
}

/** Bounds of e^-x, closer together than 2^-bits: those that Python's decimal numbers give, digit for digit. */
export function expMinus(x: Fraction, bits: number): Interval {
  const digits = Math.floor(bits / 3) + 12;
  const rounded = x.top === 0n ? x : decimal(significant(x, digits));
  // Enough bits that the value, not below e^-x, is right in all digits and some more.
  const guard = BigInt(Math.ceil(digits * 3.33) + 80) + (floorOf(rounded) + 1n) * 2n;
  const value = decimal(significant(expNear(rounded, guard), digits));
  const power = BigInt(digits - 1);
  const error = times(plus(ratio(1n), x), ratio(1n, 10n ** power));
  return [minus(value, error), plus(value, error)];
}
