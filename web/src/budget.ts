/** What an account of the ledger may spend, and what a message costs it: sums that are never rounded down. */
import { BadInput, BudgetExhausted } from "./errors.js";
import type { Adjacency, Guarantee, Unit } from "./guarantee.js";

export interface Cost {
  readonly epsilon: number;
  readonly delta: number;
}

export const NOTHING: Cost = { epsilon: 0, delta: 0 };

/** What one account may spend: of one period, and ever. Basic composition, which holds however costs are chosen. */
export interface Budget {
  readonly unit: Unit;
  readonly adjacency: Adjacency;
  readonly period: Cost;
  readonly lifetime: Cost;
}

export interface Account {
  readonly budget: Budget;
  readonly periods: Readonly<Record<string, Cost>>; // what each public period has cost
  readonly lifetime: Cost;
  readonly messages: number;
  readonly uncovered: number; // messages that promise nothing for this unit
}

export interface LedgerRecord {
  readonly format: 1;
  readonly sequence: number;
  readonly accounts: readonly Account[];
}

/** What a message promises; null: nothing. */
export type Promised = (Cost & { readonly unit: Unit; readonly adjacency: Adjacency }) | null;

const FINE_TO_COARSE: readonly Unit[] = ["click", "history", "user"];

/** A double as its neighbour above. */
export function nextUp(value: number): number {
  const bits = new BigUint64Array([0n]);
  const numbers = new Float64Array(bits.buffer);
  numbers[0] = value;
  if (value === 0) return Number.MIN_VALUE;
  bits[0] = (bits[0] as bigint) + (value > 0 ? 1n : -1n);
  return numbers[0] as number;
}

/** a + b, never below the exact sum. */
export function sumRoundedUp(a: number, b: number): number {
  const total = a + b;
  const rest = total - a;
  const lost = a - (total - rest) + (b - rest); // exactly what rounding took away (Knuth)
  return lost > 0 ? nextUp(total) : total;
}

export function sum(a: Cost, b: Cost): Cost {
  return { epsilon: sumRoundedUp(a.epsilon, b.epsilon), delta: sumRoundedUp(a.delta, b.delta) };
}

function within(cost: Cost, limit: Cost): boolean {
  return cost.epsilon <= limit.epsilon && cost.delta <= limit.delta;
}

/** What a message costs an account; null if its unit or adjacency says nothing about the account's. */
export function costTo(budget: Budget, message: Promised): Cost | null {
  if (message === null) return null;
  const behind = FINE_TO_COARSE.indexOf(message.unit) - FINE_TO_COARSE.indexOf(budget.unit);
  const [told, kept] = [message.adjacency, budget.adjacency];
  if (behind < 0 || (behind === 0 && told === "replace-one" && kept === "add-remove")) return null;
  if (told === "replace-one" || (behind === 0 && kept === "add-remove")) return message;
  // Two steps: replacing is taking out and putting in.
  return { epsilon: 2 * message.epsilon, delta: (1 + Math.exp(message.epsilon)) * message.delta };
}

export function emptyLedger(budgets: readonly Budget[]): LedgerRecord {
  const accounts = budgets.map((budget) => ({ budget, periods: {}, lifetime: NOTHING, messages: 0, uncovered: 0 }));
  return { format: 1, sequence: 0, accounts };
}

/** The record after one more message; throws `BudgetExhausted` where it does not fit. */
export function charged(record: LedgerRecord, period: string, message: Promised): LedgerRecord {
  let covered = message === null; // in the clear: nothing covers it, and every account says so from now on
  const accounts = record.accounts.map((account): Account => {
    const cost = costTo(account.budget, message);
    if (cost === null) return { ...account, uncovered: account.uncovered + 1 };
    covered = true;
    const inPeriod = sum(Object.hasOwn(account.periods, period) ? (account.periods[period] as Cost) : NOTHING, cost);
    const lifetime = sum(account.lifetime, cost);
    if (!within(inPeriod, account.budget.period) || !within(lifetime, account.budget.lifetime))
      throw new BudgetExhausted(
        `the ${account.budget.unit} budget of this period or of the lifetime is spent: the list is not personal until the next period`,
      );
    return { ...account, periods: { ...account.periods, [period]: inPeriod }, lifetime, messages: account.messages + 1 };
  });
  if (!covered) throw new BadInput(`no account of the ledger covers a message per ${message?.unit}: nothing may be sent`);
  return { ...record, sequence: record.sequence + 1, accounts };
}

/** What an account has spent in its lifetime; no guarantee once a message was not covered. */
export function spent(account: Account): Guarantee {
  const { unit, adjacency } = account.budget;
  const caveats = ["adds up costs that were fixed in advance"];
  if (account.uncovered > 0) {
    const count = account.uncovered === 1 ? "1 message" : `${account.uncovered} messages`;
    return {
      basis: "none",
      unit: null,
      adjacency: null,
      epsilon: null,
      delta: null,
      scope: null,
      trust: null,
      caveats: [`${count} without protection of one ${unit} (${adjacency})`, ...caveats],
    };
  }
  return { basis: "proven", unit, adjacency, ...account.lifetime, scope: "lifetime", trust: "nobody", caveats };
}
