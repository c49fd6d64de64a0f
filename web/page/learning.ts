/** The switch that lets this browser learn with others, and the list of all that it sent for that. */
import { BadInput, FederationFile, line, type Device, type Participation, type SentMessage } from "../src/index.js";
import { find, made } from "./dom.js";

const EXPLAINED =
  "Off: nothing of you leaves. On: this browser sends the coordinator of a federation once which items you picked, and in every" +
  " round one message about what you pick after what, cut to a length; the coordinator is trusted to put noise on the sum of" +
  " everybody’s, and to keep nothing else. You need an invitation and the federation’s public file.";

/** What is sent, and what is promised and trusted, of one federation: two sentences. */
function explained(file: FederationFile): string {
  const { address, rounds, devices, guarantee } = file.about;
  return (
    `This browser sends to ${address} once which items you picked, and in each of ${rounds} rounds one message about what you pick` +
    ` after what, cut to a length, as ${devices} devices do. Promised to whoever sees what is learnt: ${line(guarantee)}; the` +
    " coordinator itself sees your messages, and is trusted to put the noise on their sum."
  );
}

function shown(message: SentMessage): HTMLElement {
  const name = message.kind === "report" ? "Votes: which items" : `Round ${message.number}: a clipped gradient`;
  const summary = made("summary", {}, made("span", { class: "sent", text: `${name} · ` }));
  summary.append(made("span", { text: `${message.bytes.length} bytes · ${message.receipt || "not acknowledged yet"}` }));
  const item = made("li", {}, made("details", {}, summary, made("p", { class: "small", text: `${message.promise}.` })));
  item.dataset["kind"] = message.kind;
  item.dataset["round"] = String(message.number);
  item.dataset["bytes"] = String(message.bytes.length);
  item.dataset["receipt"] = message.receipt;
  return item;
}

export class Learning {
  private given: Uint8Array<ArrayBuffer> | null = null;

  constructor(
    private readonly device: Device,
    private readonly changed: () => Promise<void>, // what else shows requests
  ) {
    find("take-part").addEventListener("change", () => void this.guarded(() => this.turned()));
    find("federation-file").addEventListener("change", () => void this.guarded(() => this.chosen()));
    find("join").addEventListener("click", () => void this.guarded(() => this.joined()));
  }

  /** Go on where a person left it on; nothing is asked before. */
  async start(): Promise<void> {
    find("learning").hidden = false;
    await this.show();
    if ((await this.device.federation.participation())?.on) void this.guarded(() => this.live());
  }

  async show(): Promise<void> {
    const now = await this.device.federation.participation();
    const on = now?.on ?? false;
    find<HTMLInputElement>("take-part").checked = on || !find("joining").hidden;
    if (this.given === null) find("learning-text").textContent = now === null ? EXPLAINED : explained(now.file);
    this.list(now);
    await this.changed();
  }

  private list(now: Participation | null): void {
    find("learnt").replaceChildren(...(now?.messages ?? []).map(shown));
    find("learnt-sum").hidden = now === null;
    if (now === null) return;
    const count = now.messages.length === 1 ? "1 message" : `${now.messages.length} messages`;
    find("learnt-sum").textContent = `${count} as ${now.device}. Spent: ${now.spent}. At most: ${now.atMost}.`;
  }

  private async turned(): Promise<void> {
    const on = find<HTMLInputElement>("take-part").checked;
    const known = await this.device.federation.participation();
    find("joining").hidden = !on || known !== null;
    await this.device.federation.turn(on && known !== null);
    this.say("");
    await this.show();
    if (on && known !== null) await this.live();
  }

  private async chosen(): Promise<void> {
    const file = find<HTMLInputElement>("federation-file").files?.[0];
    this.given = file === undefined ? null : new Uint8Array(await file.arrayBuffer());
    if (this.given !== null) find("learning-text").textContent = explained(FederationFile.read(this.given));
  }

  private async joined(): Promise<void> {
    if (this.given === null) throw new BadInput("choose the federation’s public file first");
    const field = find<HTMLInputElement>("invitation");
    await this.device.federation.join(field.value, this.given);
    field.value = ""; // a secret: it is in this browser’s keys from here on
    this.given = null;
    find("joining").hidden = true;
    await this.live();
  }

  private async live(): Promise<void> {
    await this.show();
    this.say("Taking part while this page is open.");
    try {
      const over = await this.device.federation.live((words) => {
        this.say(words);
        void this.show();
      });
      this.say(over ? "The federation is over. Thank you." : "");
    } finally {
      await this.show();
    }
  }

  private say(words: string): void {
    find("learning-status").textContent = words;
  }

  private async guarded(act: () => Promise<void>): Promise<void> {
    try {
      await act();
    } catch (error) {
      this.say(error instanceof Error ? error.message : String(error));
    }
  }
}
