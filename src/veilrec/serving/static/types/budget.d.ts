import type { Adjacency, Guarantee, Unit } from "./guarantee.js";
export interface Cost {
    readonly epsilon: number;
    readonly delta: number;
}
export declare const NOTHING: Cost;
/** What one account may spend: of one period, and ever. Basic composition, which holds however costs are chosen. */
export interface Budget {
    readonly unit: Unit;
    readonly adjacency: Adjacency;
    readonly period: Cost;
    readonly lifetime: Cost;
}
export interface Account {
    readonly budget: Budget;
    readonly periods: Readonly<Record<string, Cost>>;
    readonly lifetime: Cost;
    readonly messages: number;
    readonly uncovered: number;
}
export interface LedgerRecord {
    readonly format: 1;
    readonly sequence: number;
    readonly accounts: readonly Account[];
}
/** What a message promises; null: nothing. */
export type Promised = (Cost & {
    readonly unit: Unit;
    readonly adjacency: Adjacency;
}) | null;
/** A double as its neighbour above. */
export declare function nextUp(value: number): number;
/** a + b, never below the exact sum. */
export declare function sumRoundedUp(a: number, b: number): number;
export declare function sum(a: Cost, b: Cost): Cost;
/** What a message costs an account; null if its unit or adjacency says nothing about the account's. */
export declare function costTo(budget: Budget, message: Promised): Cost | null;
export declare function emptyLedger(budgets: readonly Budget[]): LedgerRecord;
/** The record after one more message; throws `BudgetExhausted` where it does not fit. */
export declare function charged(record: LedgerRecord, period: string, message: Promised): LedgerRecord;
/** What an account has spent in its lifetime; no guarantee once a message was not covered. */
export declare function spent(account: Account): Guarantee;
