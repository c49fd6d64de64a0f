/** The bytes of a query: VRQ1, kind u8, how many numbers u16, the numbers as float32 (an interest: one u16). */
import type { Bytes } from "./bytes.js";
import { BadInput } from "./errors.js";

export const KINDS = ["vector", "attention", "pooled", "pooled-and-clear", "interest"] as const;
export type Kind = (typeof KINDS)[number];
const MOST = 2 ** 16 - 1;
const HEADER = 7;

/** The length of every query of this kind: it says nothing of who asks. */
export function queryBytes(kind: Kind, size: number): number {
  return HEADER + (kind === "interest" ? 2 : 4 * size);
}

export function encodeQuery(kind: Kind, size: number, values: readonly number[]): Bytes {
  if (!KINDS.includes(kind)) throw new BadInput(`a query of kind ${kind}: known are ${KINDS.join(", ")}`);
  if (!Number.isInteger(size) || size < 1 || size > MOST) throw new BadInput(`a query of size ${size}: give 1 to ${MOST}`);
  const content = new Uint8Array(queryBytes(kind, size));
  const view = new DataView(content.buffer);
  content.set([0x56, 0x52, 0x51, 0x31, KINDS.indexOf(kind)]); // VRQ1
  if (kind === "interest") {
    const [interest] = values;
    if (values.length !== 1 || interest === undefined || !Number.isInteger(interest) || interest < 0 || interest >= size)
      throw new BadInput(`no interest of ${size}: ${values.join(", ")}`);
    view.setUint16(5, 1, true);
    view.setUint16(HEADER, interest, true);
    return content;
  }
  if (values.length !== size) throw new BadInput(`a query has ${values.length} numbers: give ${size}`);
  view.setUint16(5, size, true);
  values.forEach((value, at) => {
    if (!Number.isFinite(Math.fround(value))) throw new BadInput("a query has numbers that are not finite: nothing is sent");
    view.setFloat32(HEADER + 4 * at, value, true);
  });
  return content;
}
