/** A client of a federation of `veil`, as its public file says: what it answers, and what that costs (federate/page.py). */
import { type Bytes } from "./bytes.js";
import { type SecureSums } from "./helpers.js";
import { type Adjacency, type Guarantee, type Unit } from "./guarantee.js";
import { type TensorShape } from "./rounds.js";
import { type Reading } from "./veil.js";
/** What the file says, in words. */
export interface AboutFederation {
    readonly format: number;
    readonly id: string;
    readonly address: string;
    readonly plan: string;
    readonly method: string;
    readonly dataset: string;
    readonly rounds: number;
    readonly clients: number;
    readonly guarantee: Guarantee;
    readonly largest_content: number;
    readonly tensors: readonly TensorShape[];
    readonly reading: Reading;
    readonly units: Readonly<Record<string, number>>;
    readonly shares: Readonly<Record<string, number>>;
    readonly clips: Readonly<Record<string, number>>;
    readonly noise: Readonly<Record<string, number>>;
    readonly unit: Unit;
    readonly adjacency: Adjacency;
    readonly delta: number;
    readonly bounds: readonly number[];
    readonly asked: readonly (readonly string[])[];
    readonly sigma: number;
    readonly sigma_of_votes: number;
    readonly mu_of_report: number;
    readonly mu_of_rounds: readonly number[];
    readonly secure_sums?: SecureSums | null;
}
/** What a round is answered with, in the open or as the whole numbers that are added up under masks. */
export interface Answer {
    readonly tensors: readonly string[];
    message(): Bytes;
    numbers(): BigInt64Array;
}
export declare class FederationFile {
    readonly about: AboutFederation;
    readonly ids: readonly string[];
    private readonly content;
    private readonly whitening;
    private readonly byId;
    private constructor();
    /**
     * Read a public file, and check that it is the one that an invitation names by its digest: first comes what everybody
     * of the federation has agreed on, then the coordinator's address, and then what browsers act on, whose digest is a
     * part of the first.
     */
    static agreed(bytes: Bytes, pin: string): Promise<FederationFile>;
    static read(bytes: Bytes): FederationFile;
    private checkShapes;
    /** The tensors of places, each learnt after the one before. */
    private get passes();
    /** Along which places of items are learnt in one pass; 0 where none are. */
    private get directions();
    /** Of the space that the map is over: content, and places beyond it. */
    private get width();
    /** Where items of some ids are, in the same order; those that the federation does not know are left out. */
    known(ids: readonly string[]): number[];
    message(content: Bytes, number: number, history: readonly number[], seed: bigint, client?: number): Bytes;
    /** The answer to a round, as long as the round's bound at most; also of an empty history, because silence would tell. */
    answer(content: Bytes, number: number, history: readonly number[], seed: bigint, client?: number): Answer;
    /** What the own history has to say to a round, of any length. */
    private toSay;
    /** Where items lie beyond their content, as the sums of a round say; before they were released nothing is known. */
    private placesIn;
    report(number: number, history: readonly number[]): Bytes;
    /** The vote that a server would make of the report, in steps of 2^-24: all of it together is at most one (votes.py). */
    votes(history: readonly number[]): BigInt64Array;
    get trust(): string;
    private inUnits;
    /** mu of a message, as ledgers count it. */
    cost(kind: "report" | "round", number: number): number;
    /** Squared mu of all that this federation will ever ask. */
    get limit(): number;
    /** What messages of this squared mu promise together. */
    statement(squared: number, scope: string): Guarantee;
    /** Numbers that noise is drawn for, in all rounds and for the votes. */
    private get dimension();
    line(squared: number, scope: string): string;
}
/** Numbers up to a bound as whole ones, cut towards 0: so large that the sum of so many clients fits (lattice.py). */
export declare function onLattice(values: readonly number[], bound: number, clients: number): BigInt64Array;
