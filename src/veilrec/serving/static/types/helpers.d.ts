/**
 * A client's side of secure sums with helpers (federate/secagg/helpers.py): its vector leaves under a mask for every
 * helper, and the coordinator sees sums alone. Federation, helpers and how few may be added up it knows from the
 * federation's public file, not from servers.
 */
import { type Bytes } from "./bytes.js";
/** What the public file says of secure sums. */
export interface SecureSums {
    readonly helpers: readonly string[];
    readonly least: number;
    readonly max_clients: number;
}
/** Who signs here, and as which client. */
export interface Signer {
    readonly key: CryptoKey;
    readonly place: number;
}
/** A sum among all those of a federation: which one it is, and how large its numbers are. */
export interface Sum {
    readonly number: number;
    readonly width: number;
}
export declare function checkSecureSums(found: SecureSums, clients: number): boolean;
/** The sum of the updates of a round. */
export declare function sumOfRound(number: number): Sum;
/** The sum of what so many clients report (federate/sums.py): helpers add it up once, so that it has one number. */
export declare function sumOfReports(number: number, clients: number): Sum;
/** The two contents of a task under masks: the invitation, and what the task is without them. */
export declare function parted(content: Bytes): [Bytes, Bytes];
/** Refuse to act on other bytes than those that everybody of the sum acts on. */
export declare function checkActedOn(invitation: Bytes, acted: Bytes): Promise<void>;
/**
 * The vector under a mask for every helper; made again it has other masks, so it is kept until it has arrived. `acted`
 * is what this client has acted on, as it came, and `federation` the digest of what was agreed on.
 */
export declare function masked(content: Bytes, acted: Bytes, values: BigInt64Array, about: Sum, federation: Bytes, sums: SecureSums, signer: Signer, own?: CryptoKeyPair): Promise<Bytes>;
