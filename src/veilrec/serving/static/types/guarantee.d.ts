export type Unit = "click" | "history" | "user";
export type Adjacency = "replace-one" | "add-remove";
export interface Guarantee {
    readonly basis: "proven" | "as published" | "none";
    readonly unit: Unit | null;
    readonly adjacency: Adjacency | null;
    readonly epsilon: number | null;
    readonly delta: number | null;
    readonly scope: string | null;
    readonly trust: string | null;
    readonly caveats: readonly string[];
    readonly honest_epsilon?: number | null;
    readonly honest_delta?: number | null;
}
export declare const NO_GUARANTEE: Guarantee;
export declare const NOTHING_SENT: Guarantee;
/** Whether a value of JSON is a statement that Python would read: known words, and an epsilon with all that belongs to it. */
export declare function isGuarantee(value: unknown): value is Guarantee;
/** As Python prints a number with :g, six digits. */
export declare function short(value: number): string;
/** One line; an epsilon is never printed without its unit and the rest. */
export declare function line(guarantee: Guarantee): string;
/** The smallest delta at epsilon >= 0 of Gaussian noise: Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu). */
export declare function deltaGaussian(epsilon: number, mu: number): number;
/** The same for noise on the lattice as our sampler draws it, in so many coordinates. */
export declare function latticeDelta(epsilon: number, mu: number, dimension: number): number;
/** L1 diameter of attention vectors clipped in L2. */
export declare function attentionL1(clip: number, basis: number): number;
/** L2 diameter of the same. */
export declare function attentionL2(clip: number): number;
export interface Claim {
    readonly epsilon: number;
    readonly delta: number;
    readonly unit: Unit;
    readonly adjacency: Adjacency;
}
/** Whether an offer's epsilon and delta hold for the noise that it asks for; throws where they do not. */
export declare function checkLaplaceAttention(claim: Claim, size: number, clip: number, scale: number): void;
export declare function checkGaussianAttention(claim: Claim, size: number, clip: number, scale: number): void;
export declare function checkPooled(claim: Claim, size: number, clip: number, sigma: number, slots: number): void;
export declare function refusal(mode: string, claim: Claim): string;
