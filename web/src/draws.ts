/** Draws that everybody can repeat (splitmix64), the same as in Python: which items stand beside the own ones. */

const GOLDEN = 0x9e3779b97f4a7c15n;
const LEARNING = 1n; // what a draw is for; streams of two purposes never meet
const word64 = (value: bigint): bigint => BigInt.asUintN(64, value);

/** A bijection of 64-bit words that scatters every bit. */
function mix(value: bigint): bigint {
  let z = word64(value);
  z = word64((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n);
  z = word64((z ^ (z >> 27n)) * 0x94d049bb133111ebn);
  return z ^ (z >> 31n);
}

/** The start of the stream that a client learns with. */
export function learningStream(seed: number | bigint, client: number): bigint {
  let state = mix(BigInt(seed) + GOLDEN);
  state = mix(state + LEARNING * GOLDEN);
  state = mix(state); // round 0
  return mix(state + BigInt(client) * GOLDEN);
}

/** A number in [0, bound) from the word of a place in a stream. */
export function drawnBelow(start: bigint, counter: number, bound: number): number {
  const upper = mix(start + BigInt(counter + 1) * GOLDEN) >> 32n;
  return Number((upper * BigInt(bound)) >> 32n);
}
