/**
 * A browser that takes part in a federation: it asks what there is to do, does it, and sends it, never twice in two ways.
 *
 * - A message leaves only after it and its charge are on disk, in one transaction; after a reload the same bytes leave
 *   again, or none have. A round before the last one answered is refused.
 * - The noise is the coordinator's: messages are clipped, and the promise trusts it. So they have an account of their
 *   own, and never touch the accounts of what trusts nobody.
 * - Several tabs are one client: whichever is first charges and keeps the message, and the others send the same bytes.
 *   Off is off in all of them, also in the middle of a round; what was paid for by then leaves when it is on again.
 * - Nothing of an error leaves. What cannot or must not be answered is left unanswered; a budget that is gone ends it.
 */
import { sumRoundedUp } from "./budget.js";
import { fromHex, hex, joined, sha256, text, utf8, type Bytes } from "./bytes.js";
import { BadInput, BudgetExhausted, Declined } from "./errors.js";
import { checkActedOn, masked, parted, sumOfReports, sumOfRound, type SecureSums, type Sum } from "./helpers.js";
import { FederationFile } from "./trainer.js";
import { roundKey } from "./masks.js";
import { NoAnswer, Outbox, type Outgoing } from "./outbox.js";
import { reportFor } from "./rounds.js";
import type { Store } from "./store.js";

const PURPOSE = utf8("veilrec federation\n");
const PKCS8 = fromHex("302e020100300506032b657004220420"); // what comes before the 32 bytes of a secret
const POLL_SECONDS = 10;
const SMALL = 1 << 16;
const [FIRST_PAUSE_MS, LONGEST_PAUSE_MS, DECLINED_MS] = [200, 30_000, 5_000];
const NOT_OF_YOU = "says that this browser takes part, when, and from which address; nothing of what you picked";
const STATE = "federation";

type Kind = "report" | "round";

interface Task {
  readonly kind: string;
  readonly number: number;
  readonly period: number;
  readonly sha256: string;
  readonly size: number;
}

/** Who this browser is in a federation; keys are WebCrypto's, which no script can read out. */
interface State {
  readonly file: Bytes;
  readonly client: string;
  readonly agreed: string; // the digest of what was agreed on, in hexadecimal digits: of this it takes part
  readonly invitation: CryptoKey;
  readonly key: CryptoKeyPair;
  readonly seed: bigint; // of its draws: a secret of its own
  readonly on: boolean;
}

/** A message as it left, or is about to. */
export interface SentMessage {
  readonly federation: string;
  readonly kind: Kind;
  readonly number: number; // of the round; of a report, of its period
  readonly bytes: Bytes;
  readonly tensors?: readonly string[]; // what it is about; unknown of messages that an older page sent
  readonly promise: string; // the full line
  readonly at: string;
  readonly receipt: string; // what the coordinator said; empty: nothing yet
}

interface Spending {
  readonly format: 1;
  readonly squaredMu: number;
  readonly lastRound: number;
}

export interface Participation {
  readonly on: boolean;
  readonly client: string;
  readonly file: FederationFile;
  readonly share: number; // of the budget that is spent, from 0 to 1
  readonly spent: string; // full lines
  readonly atMost: string;
  readonly messages: readonly SentMessage[]; // newest first
}

async function signed(key: CryptoKey, statement: string): Promise<string> {
  return hex(new Uint8Array(await crypto.subtle.sign({ name: "Ed25519" }, key, joined(PURPOSE, utf8(statement)))));
}

/** What is signed (federate/identity.py). */
export async function statementFor(federation: string, client: string, kind: string, number: number, content: Bytes): Promise<string> {
  return [federation, client, kind, String(number), await sha256(content)].join("\n");
}

/** The name of the client, the key and the digest of what was agreed on, of an invitation `CLIENT:SECRET:DIGEST`. */
export async function readInvitation(given: string): Promise<[string, CryptoKey, string]> {
  const [, client, secret, agreed] = /^([A-Za-z0-9_.-]{1,100}):([0-9a-f]{64}):([0-9a-f]{64})$/.exec(given.trim()) ?? [];
  if (client === undefined || secret === undefined || agreed === undefined)
    throw new BadInput("this is no invitation: it looks like d00003:0a1b…:2c3d…, on one line; ask whoever runs the federation for one");
  return [client, await crypto.subtle.importKey("pkcs8", joined(PKCS8, fromHex(secret)), { name: "Ed25519" }, false, ["sign"]), agreed];
}

function taskOf(content: Bytes): Task | null {
  const found = JSON.parse(text(content)) as Task | null;
  if (found === null) return null;
  const whole = [found.number, found.period, found.size].every((value) => Number.isSafeInteger(value) && value >= 0);
  if (typeof found.kind !== "string" || typeof found.sha256 !== "string" || !whole)
    throw new BadInput("the coordinator asks for something that is not understood");
  return found;
}

export class TakingPart {
  private running = 0; // the number of the life that goes on; 0: none
  private lives = 0;

  constructor(
    private readonly store: Store,
    private readonly history: () => Promise<string[]>, // ids, the latest last
    private readonly onEntry: () => void = () => undefined,
  ) {}

  /** Take part from now on, with an invitation and the federation's public file. Nothing is sent by this. */
  async join(invitation: string, file: Bytes): Promise<void> {
    const [client, vouching, agreed] = await readInvitation(invitation);
    const { id, secure_sums } = (await FederationFile.agreed(file, agreed)).about;
    if (secure_sums) await roundKey(); // a browser that has none cannot take part
    const before = await this.state();
    const same = before !== undefined && before.client === client && FederationFile.read(before.file).about.id === id;
    const made = same ? before.key : ((await crypto.subtle.generateKey({ name: "Ed25519" }, false, ["sign", "verify"])) as CryptoKeyPair);
    const seed = same ? before.seed : BigInt.asUintN(63, crypto.getRandomValues(new BigUint64Array(1))[0] as bigint);
    await this.store.put("settings", STATE, { file, client, agreed, invitation: vouching, key: made, seed, on: true } satisfies State);
  }

  async turn(on: boolean): Promise<void> {
    const state = await this.state();
    if (!on) this.running = 0;
    if (state !== undefined) await this.store.put("settings", STATE, { ...state, on } satisfies State);
  }

  /** What a person sees of it; null where this browser never joined one. */
  async participation(): Promise<Participation | null> {
    const state = await this.state();
    if (state === undefined) return null;
    const file = FederationFile.read(state.file);
    const { id } = file.about;
    const { squaredMu } = (await this.store.get<Spending>("ledger", account(id))) ?? { squaredMu: 0 };
    const all = await this.store.read(["messages"], (change) => change.all<SentMessage>("messages"));
    const messages = all.filter((message) => message.federation === id).sort((a, b) => (a.at < b.at ? 1 : -1));
    const [share, spent] = [Math.min(1, squaredMu / file.limit), file.line(squaredMu, "so far")];
    return { on: state.on, client: state.client, file, messages, share, spent, atMost: file.line(file.limit, "whole run") };
  }

  /** Until it is over (true), or somebody turns it off (false). What happens is said in words. */
  async live(say: (words: string) => void): Promise<boolean> {
    const life = (this.running = ++this.lives);
    let [pause, place] = [FIRST_PAUSE_MS, -1]; // the place at the coordinator is known once it has enrolled
    while (this.running === life) {
      try {
        const link = await this.link();
        if (!link.state.on) return false; // another tab has turned it off
        if (place < 0) place = await link.enrol();
        const task = await link.poll();
        pause = FIRST_PAUSE_MS;
        if (task?.kind === "over") return true;
        if (task !== null && (await this.isOn(life))) await this.serve(link, task, place, life, say);
      } catch (error) {
        if (error instanceof SwitchedOff) return false;
        if (error instanceof BudgetExhausted) await this.turn(false);
        if (error instanceof NoAnswer && [401, 403, 404].includes(error.status)) throw refusal(error.status);
        if (!(error instanceof NoAnswer) && !(error instanceof BadInput)) throw error;
        say(error.message);
        await rest(pause * Math.random());
        pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
      }
    }
    return false;
  }

  private async serve(link: Link, task: Task, place: number, life: number, say: (words: string) => void): Promise<void> {
    try {
      const content = await link.fetch(task);
      const message = await this.answer(link.file, link.state, task, content, place);
      if (!(await this.isOn(life))) throw new SwitchedOff();
      const receipt = await link.send(task, message);
      await this.acknowledge(message.key, receipt);
      say(`${named(task, link.file)}: ${receipt}`);
    } catch (error) {
      if (error instanceof NoAnswer && (error.away || [401, 403, 404].includes(error.status))) throw error;
      if (!(error instanceof NoAnswer || error instanceof BadInput)) throw error;
      if (error instanceof Declined) await link.decline(task, error.reason);
      say(`${named(task, link.file)}: not answered, because ${error.message}`);
      await rest(DECLINED_MS * (0.5 + Math.random() / 2));
    }
  }

  /** The message of a task: made and charged once, on disk before anybody gets it, and the same ever after. */
  private async answer(file: FederationFile, state: State, task: Task, content: Bytes, place: number): Promise<Ready> {
    if (task.kind !== "report" && task.kind !== "round") throw new BadInput(`a browser does not do this: ${task.kind}`);
    const kind: Kind = task.kind;
    const { id, secure_sums: sums } = file.about;
    const number = kind === "report" ? task.period : task.number;
    // Of a sum of reports there is one message, whatever the period: two of them would tell how they differ.
    const key = `${account(id)} ${kind} ${kind === "report" && sums ? "sum" : number}`;
    const leaving = (sent: SentMessage, fresh: boolean): Ready => {
      const numbered = kind === "report" && !sums;
      return { key, sent, fresh, body: numbered ? reportFor(sent.bytes, task.number) : sent.bytes };
    };
    const known = await this.store.get<SentMessage>("messages", key);
    if (known !== undefined) return leaving(known, false);
    charged(file, await this.store.get<Spending>("ledger", account(id)), kind, number); // nothing is made that would not fit
    const [tensors, bytes] = await this.made(file, state, task, content, place);
    const promise = file.line(file.cost(kind, number) ** 2, "this message");
    const made: SentMessage = { federation: id, kind, number, bytes, tensors, promise, at: new Date().toISOString(), receipt: "" };
    return this.store.change(["ledger", "messages", "settings"], async (change) => {
      const other = await change.get<SentMessage>("messages", key); // another tab may have been faster
      if (other !== undefined) return leaving(other, false);
      if (!(await change.get<State>("settings", STATE))?.on) throw new SwitchedOff();
      change.put("ledger", account(id), charged(file, await change.get<Spending>("ledger", account(id)), kind, number));
      change.put("messages", key, made);
      return leaving(made, true);
    });
  }

  /** What a message is about, and its bytes, under masks where the coordinator is to see sums alone. */
  private async made(file: FederationFile, state: State, { kind, number }: Task, content: Bytes, place: number): Promise<[readonly string[], Bytes]> {
    const { clients, secure_sums: sums } = file.about;
    const history = file.known(await this.history());
    const [invitation, rest] = sums ? parted(content) : [content, content];
    const under = (values: BigInt64Array, about: Sum): Promise<Bytes> =>
      masked(invitation, rest, values, about, fromHex(state.agreed), sums as SecureSums, { key: state.key.privateKey, place });
    if (sums) await checkActedOn(invitation, rest); // before anything is learnt from it
    if (kind === "report")
      return [["votes"], sums ? await under(file.votes(history), sumOfReports(number, clients)) : file.report(number, history)];
    const answer = file.answer(rest, number, history, state.seed);
    return [answer.tensors, sums ? await under(answer.numbers(), sumOfRound(number)) : answer.message()];
  }

  /** That it was taken is said once; another tab that sends the same again learns that it is known. */
  private async acknowledge(key: string, receipt: string): Promise<void> {
    await this.store.change(["messages"], async (change) => {
      const sent = await change.get<SentMessage>("messages", key);
      if (sent !== undefined && sent.receipt !== "taken") change.put("messages", key, { ...sent, receipt } satisfies SentMessage);
    });
  }

  /** Whether a life goes on: neither here nor in another tab somebody has turned it off. */
  private async isOn(life: number): Promise<boolean> {
    return this.running === life && ((await this.state())?.on ?? false);
  }

  private async link(): Promise<Link> {
    const state = await this.state();
    if (state === undefined) throw new BadInput("this browser takes part in nothing: give an invitation first");
    const file = FederationFile.read(state.file);
    return new Link(new Outbox(this.store, file.about.address, this.onEntry), file, state);
  }

  private state(): Promise<State | undefined> {
    return this.store.get<State>("settings", STATE);
  }
}

/** Somebody has turned it off, here or in another tab: nothing leaves. */
class SwitchedOff extends Error {}

/** What is spent with one more message; a round that is over, and what does not fit any more, is refused. */
function charged(file: FederationFile, known: Spending | undefined, kind: Kind, number: number): Spending {
  const before = known ?? { format: 1, squaredMu: 0, lastRound: -1 };
  if (kind === "round" && number <= before.lastRound)
    throw new BadInput(`round ${number} is over: this browser has answered round ${before.lastRound} already`);
  const cost = file.cost(kind, number);
  if (!(cost < Infinity)) throw new BadInput(`round ${number} is beyond the last of this federation`);
  const squaredMu = sumRoundedUp(before.squaredMu, cost ** 2);
  if (!(squaredMu <= file.limit * (1 + 1e-9)))
    throw new BudgetExhausted("All that this federation may ever learn of this browser is spent: it takes no more part, and nothing leaves.");
  return { format: 1, squaredMu, lastRound: kind === "round" ? number : before.lastRound };
}

/** A message that may leave: it is paid for. */
interface Ready {
  readonly key: string; // in the store of messages
  readonly sent: SentMessage;
  readonly body: Bytes;
  readonly fresh: boolean;
}

/** The way to the coordinator (federation/link.py). */
class Link {
  constructor(
    private readonly outbox: Outbox,
    readonly file: FederationFile,
    readonly state: State,
  ) {}

  /** Tie the own key to the place that the invitation is for, which is told; the same again is free. */
  async enrol(): Promise<number> {
    const { id, plan } = this.file.about;
    const { client, invitation, key } = this.state;
    const own = new Uint8Array(await crypto.subtle.exportKey("raw", key.publicKey));
    const endorsement = await signed(invitation, await statementFor(id, client, "enrol", 0, own));
    const body = utf8(JSON.stringify({ federation: id, plan, client, key: hex(own), endorsement }));
    const request = { ...asking("/v1/enrol", body, "application/json"), what: "enrols in a federation", most: SMALL };
    const { place } = JSON.parse(text(await this.outbox.send(request))) as { place?: unknown };
    return Number.isSafeInteger(place) && (place as number) >= 0 && (place as number) < 2 ** 32 ? (place as number) : 0;
  }

  async poll(): Promise<Task | null> {
    const nonce = hex(crypto.getRandomValues(new Uint8Array(8)));
    const body = utf8(`${POLL_SECONDS.toFixed(3)} ${nonce}`);
    const what = "asks what the federation needs";
    return taskOf(await this.signed({ ...asking("/v1/poll", body), what, repeats: true, most: SMALL }, "poll", 0));
  }

  async fetch(task: Task): Promise<Bytes> {
    if (task.sha256 === "") return new Uint8Array(0);
    if (task.size > this.file.about.largest_content) throw new BadInput("the coordinator sends more than this federation has");
    const request = { ...asking("/v1/content", utf8(task.sha256)), what: "the model of a round", most: task.size };
    const content = await this.signed(request, "content", 0);
    if ((await sha256(content)) !== task.sha256) throw new NoAnswer("what came is not what was announced", 0);
    return content;
  }

  async send(task: Task, { sent, body, fresh }: Ready): Promise<string> {
    const headers = { "X-Veilrec-Kind": task.kind, "X-Veilrec-Number": String(task.number) };
    const what = `a message to the federation (${task.kind} ${sent.number}), ${fresh ? "clipped here" : "the same again"}`;
    const request = { ...asking("/v1/answer", body, "application/octet-stream"), what, cost: sent.promise, charged: fresh, headers, most: SMALL };
    const answer = JSON.parse(text(await this.signed(request, task.kind, task.number))) as { receipt?: unknown };
    return answer.receipt === "known already" ? "known already" : "taken";
  }

  /** Say why a round is not answered; it depends on what came alone. */
  async decline(task: Task, reason: string): Promise<void> {
    const headers = { "X-Veilrec-Kind": "declined", "X-Veilrec-Number": String(task.number) };
    const request = { ...asking("/v1/answer", utf8(reason), "application/octet-stream"), what: `declines a round (${reason})`, headers, most: SMALL };
    await this.signed(request, "declined", task.number).catch((error: unknown) => {
      if (!(error instanceof NoAnswer)) throw error; // it counts as absent either way
    });
  }

  private async signed(request: Outgoing & { body: Bytes }, kind: string, number: number): Promise<Bytes> {
    const { client, key } = this.state;
    const signature = await signed(key.privateKey, await statementFor(this.file.about.id, client, kind, number, request.body));
    const digest = await sha256(request.body);
    const headers = { ...request.headers, "X-Veilrec-Client": client, "X-Veilrec-Digest": digest, "X-Veilrec-Signature": signature };
    return this.outbox.send({ ...request, headers });
  }
}

function asking(path: string, body: Bytes, type = "text/plain"): { method: "POST"; path: string; type: string; body: Bytes; cost: string } {
  return { method: "POST", path, type, body, cost: NOT_OF_YOU };
}

function named({ kind, number }: Task, file: FederationFile): string {
  return kind === "report" ? "Votes" : `Round ${number + 1} of ${file.about.rounds}`;
}

function account(id: string): string {
  return `federation ${id}`;
}

function refusal(status: number): BadInput {
  const why = status === 404 ? "it is another federation" : "the invitation was used by another device, or was revoked";
  return new BadInput(`the coordinator turns this browser away (${status}): ${why}; ask whoever runs the federation`);
}

function rest(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
