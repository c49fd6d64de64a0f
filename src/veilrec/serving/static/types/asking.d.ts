/** From a user vector and clicks to the bytes of a query, by one of the offers of a release. */
import type { Bytes } from "./bytes.js";
import type { Promised } from "./budget.js";
import { type Guarantee } from "./guarantee.js";
import type { Manifest, Offer } from "./release.js";
import { type Tensors } from "./safetensors.js";
import type { Source } from "./samplers.js";
/** What of a person goes into a mechanism. */
export interface Person {
    readonly user: Float64Array;
    readonly ranking?: Float64Array;
    readonly alpha: readonly number[] | null;
    readonly clicks: readonly Float64Array[];
}
/** What is charged for an offer; the client works out itself that the noise keeps it, and refuses otherwise. */
export declare function promiseOf(offer: Offer): Promised;
/** The statement of an offer as shown to people: what the client worked out, in the words of the release. */
export declare function statementOf(offer: Offer): Guarantee;
/** What tells the message of one way of asking from all others, in one period. */
export declare function messageKey(manifest: Manifest, offer: Offer): string;
/** Which of the public interests is nearest: u . b - |b|^2 / 2. */
export declare function nearness(user: ArrayLike<number>, interests: Float64Array): number[];
/** One draw of a query; it stays here until it is charged. */
export declare function draw(offer: Offer, person: Person, serving: Tensors, source: Source): Bytes;
