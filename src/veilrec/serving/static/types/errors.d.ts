/** Something that cannot be used: one line that says what was wrong, what is allowed, and what to do. */
export declare class BadInput extends Error {
    name: string;
}
/** A release that is unsigned, altered, older than one seen before, too large, or for a newer client. */
export declare class BadRelease extends BadInput {
    name: string;
}
/** A release signed by a key that leads from no key that this browser trusts. */
export declare class UnknownKey extends BadRelease {
    readonly key: string;
    readonly trusted: string;
    name: string;
    constructor(message: string, key: string, trusted: string);
}
export type DeclineReason = "not finite" | "beyond the bound" | "another digest" | "another plan";
/** Why this browser takes no part in a round, before it has looked at anything that was picked: it says so. */
export declare class Declined extends BadInput {
    readonly reason: DeclineReason;
    name: string;
    constructor(reason: DeclineReason, message: string);
}
/** The message does not fit into what is left of a budget: nothing was charged, and nothing leaves. */
export declare class BudgetExhausted extends Error {
    name: string;
}
