/** Something that cannot be used: one line that says what was wrong, what is allowed, and what to do. */
export class BadInput extends Error {
  override name = "BadInput";
}

/** A release that is unsigned, altered, older than one seen before, too large, or for a newer client. */
export class BadRelease extends BadInput {
  override name = "BadRelease";
}

/** A release signed by a key that leads from no key that this browser trusts. */
export class UnknownKey extends BadRelease {
  override name = "UnknownKey";
  constructor(
    message: string,
    readonly key: string,
    readonly trusted: string,
  ) {
    super(message);
  }
}

export type DeclineReason = "not finite" | "beyond the bound" | "another digest" | "another plan";

/** Why this browser takes no part in a round, before it has looked at anything that was picked: it says so. */
export class Declined extends BadInput {
  override name = "Declined";
  constructor(
    readonly reason: DeclineReason,
    message: string,
  ) {
    super(message);
  }
}

/** The message does not fit into what is left of a budget: nothing was charged, and nothing leaves. */
export class BudgetExhausted extends Error {
  override name = "BudgetExhausted";
}
