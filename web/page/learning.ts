/** The switch that lets this browser learn with others, and the list of all that it sent for that. */
import { BadInput, FederationFile, hex, line, type Client, type Participation, type SentMessage } from "../src/index.js";
import { find, made } from "./dom.js";
import { bar, inHex, size } from "./panel.js";

const EXPLAINED =
  "Off: nothing of you leaves. On: this browser sends the coordinator of a federation once which items you picked, and in every" +
  " round one message about what you pick after what, cut to a length; the coordinator is trusted to put noise on the sum of" +
  " everybody’s, and to keep nothing else. Where a federation has helpers it sees sums alone. You need an invitation and the" +
  " federation’s public file.";
const ABOUT: Readonly<Record<string, string>> = {
  votes: "which items you picked: one vote, shared among all of them",
  places: "after what you picked each item, as places among what items are about",
  further: "the same once more, among what the first places said",
  weights: "which kinds of likeness should count more, by what you picked",
  map: "which tastes lead to which, by what you picked after what",
};

/** What is sent to whom, what is promised, and who sees it, of one federation. */
function explained(file: FederationFile): HTMLElement {
  const { address, rounds, clients, guarantee, secure_sums } = file.about;
  const list = made("dl", { class: "facts" });
  const add = (term: string, value: string): void => list.append(made("dt", { text: term }), made("dd", { text: value }));
  add("What is sent", `Once which items you picked, and in each of ${rounds} rounds one message about what you pick after what, cut to a length.`);
  add("To whom", `${address}, as ${clients} clients do.`);
  add("Promised to whoever sees what is learnt", `${line(guarantee)}.`);
  add(
    "Who sees your messages",
    secure_sums
      ? `Nobody: they leave under masks of ${secure_sums.helpers.length} helpers. As long as one of these does not work with the coordinator,` +
          ` it sees sums alone, of ${secure_sums.least} clients or more. It is trusted to put the noise on them.`
      : "The coordinator. It is trusted to put the noise on their sum, and to keep nothing else.",
  );
  return list;
}

function shown(message: SentMessage, file: FederationFile): HTMLElement {
  const { kind, number, bytes, tensors = [], receipt, promise, at } = message;
  const name = kind === "report" ? "Votes" : `Round ${number + 1}: ${tensors.join(" and ") || "a gradient"}`;
  const summary = made("summary", {}, made("span", { class: "sent", text: name }));
  summary.append(made("span", { text: ` · ${size(bytes.length)} · ${receipt || "not acknowledged yet"}` }));
  const list = made("dl");
  const add = (term: string, value: string, code = false): void => {
    list.append(made("dt", { text: term }), made("dd", {}, made(code ? "code" : "span", { text: value })));
  };
  const helpers = file.about.secure_sums?.helpers.length;
  for (const tensor of tensors) add(`What it says: ${tensor}`, ABOUT[tensor] ?? tensor);
  add("Who sees it", helpers === undefined ? "the coordinator, as it is" : `nobody: it is under masks of ${helpers} helpers; the coordinator sees sums alone`);
  add("Charged before it left", `${percent(file.cost(kind, number) ** 2 / file.limit)} of this federation’s budget`);
  add("What it promises, by itself", `${promise}.`);
  add("When", new Date(at).toLocaleString());
  add(`Its ${bytes.length} bytes`, inHex(hex(bytes).match(/../g) ?? []), true);
  const item = made("li", {}, made("details", {}, summary, list));
  Object.assign(item.dataset, { kind, round: String(number), bytes: String(bytes.length), tensors: tensors.join(" "), receipt });
  return item;
}

function percent(share: number): string {
  return `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
}

export class Learning {
  private given: Uint8Array<ArrayBuffer> | null = null;

  constructor(
    private readonly client: Client,
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
    if ((await this.client.federation.participation())?.on) void this.guarded(() => this.live());
  }

  async show(): Promise<void> {
    const now = await this.client.federation.participation();
    const on = now?.on ?? false;
    find<HTMLInputElement>("take-part").checked = on || !find("joining").hidden;
    if (this.given === null) find("learning-text").replaceChildren(now === null ? EXPLAINED : explained(now.file));
    this.list(now);
    await this.changed();
  }

  private list(now: Participation | null): void {
    const open = new Set([...document.querySelectorAll<HTMLElement>("#learnt li:has(details[open])")].map(({ dataset }) => `${dataset["kind"]} ${dataset["round"]}`));
    find("learnt").replaceChildren(...(now?.messages ?? []).map((message) => shown(message, now?.file as FederationFile)));
    for (const item of document.querySelectorAll<HTMLElement>("#learnt li"))
      if (open.has(`${item.dataset["kind"]} ${item.dataset["round"]}`)) item.querySelector("details")?.setAttribute("open", "");
    find("learnt-sum").hidden = find("learnt-budget").hidden = now === null;
    if (now === null) return;
    find("learnt-budget").replaceChildren(...bar("This federation’s budget, ever", now), made("span", { class: "line", text: `${now.spent}.` }));
    const count = now.messages.length === 1 ? "1 message" : `${now.messages.length} messages`;
    const all = now.messages.reduce((sum, { bytes }) => sum + bytes.length, 0);
    find("learnt-sum").textContent = `${count} as ${now.client}, ${size(all)}. At most, ever: ${now.atMost}.`;
  }

  private async turned(): Promise<void> {
    const on = find<HTMLInputElement>("take-part").checked;
    const known = await this.client.federation.participation();
    find("joining").hidden = !on || known !== null;
    await this.client.federation.turn(on && known !== null);
    this.say("");
    await this.show();
    if (on && known !== null) await this.live();
  }

  private async chosen(): Promise<void> {
    const file = find<HTMLInputElement>("federation-file").files?.[0];
    this.given = file === undefined ? null : new Uint8Array(await file.arrayBuffer());
    if (this.given !== null) find("learning-text").replaceChildren(explained(FederationFile.read(this.given)));
  }

  private async joined(): Promise<void> {
    if (this.given === null) throw new BadInput("choose the federation’s public file first");
    const field = find<HTMLInputElement>("invitation");
    await this.client.federation.join(field.value, this.given);
    field.value = ""; // a secret: it is in this browser’s keys from here on
    this.given = null;
    find("joining").hidden = true;
    await this.live();
  }

  private async live(): Promise<void> {
    await this.show();
    this.say("Taking part while this page is open.");
    try {
      const over = await this.client.federation.live((words) => {
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
