/** The panel: modes, the ledger as bars that fill, every request with its bytes, and what was read. */
import type { AccountReport, Click, Entry, Mode, Spent } from "../src/index.js";
import { find, made } from "./dom.js";
import type { Words } from "./words.js";

const SHOWN = 4000; // bytes of a message

const NAMES: Record<string, string> = {
  "none-sent": "Send nothing",
  interest: "Private query: one interest",
  attention: "Private query: noisy interests",
  pooled: "Private query: noisy sum",
  plain: "My interests as they are",
  "not-personal": "Not personal",
};

export function nameOf(mode: string): string {
  return NAMES[mode] ?? mode;
}

export function showModes(modes: readonly Mode[], active: string, words: Words, chosen: (mode: Mode) => void): void {
  const hints: Record<string, string> = { "none-sent": words.sendNothing, "not-personal": words.notPersonal };
  const form = find<HTMLFormElement>("modes");
  const labels = modes.map((mode) => {
    const input = made("input");
    input.type = "radio";
    input.name = "mode";
    input.value = mode.id;
    input.checked = mode.id === active;
    input.addEventListener("change", () => chosen(mode));
    const hint = made("span", { class: "hint", text: hints[mode.id] ?? `One message of ${mode.bytes} bytes per release.` });
    hint.id = `hint-${mode.id}`;
    input.setAttribute("aria-describedby", hint.id);
    return made("label", {}, input, made("span", { text: nameOf(mode.id) }), hint);
  });
  const legend = made("legend", { class: "visually-hidden", text: "What may leave this browser" });
  form.replaceChildren(made("fieldset", {}, legend, ...labels));
}

/** A budget as a bar that fills, and how much of it is spent, from 0 to 1. */
export function bar(label: string, { share }: Pick<Spent, "share">): HTMLElement[] {
  const percent = Math.round(share * 100);
  const fill = made("span");
  fill.style.width = `${Math.round(share * 1000) / 10}%`;
  const meter = made("div", { class: "meter" }, fill);
  meter.setAttribute("role", "meter");
  meter.setAttribute("aria-label", label);
  meter.setAttribute("aria-valuemin", "0");
  meter.setAttribute("aria-valuemax", "100");
  meter.setAttribute("aria-valuenow", String(percent));
  meter.setAttribute("aria-valuetext", `${percent} % of the budget`);
  const words = made("span", { class: "label" }, made("span", { text: label }), made("span", { text: `${percent} %` }));
  return [words, meter];
}

/** Bars that fill; where nothing was spent and nothing can be, a sentence. */
export function showAccounts(accounts: readonly AccountReport[], words: Words, asks: boolean): void {
  if (!asks && accounts.every(({ messages, uncovered }) => messages === 0 && uncovered === 0)) {
    find("accounts").replaceChildren(made("p", { class: "sum", text: words.nothingToSpend }));
    return;
  }
  const shown = accounts.map((account) => {
    const { period, lifetime, uncovered } = account;
    const whose = account.unit === "history" ? "All that you read" : "Any one story";
    const lines = [...bar(whose, period), made("span", { class: "line", text: period.spent })];
    if (uncovered > 0) lines.push(made("span", { class: "line", text: `${account.caveats[0] ?? ""}.` }));
    const limits = made("details", { class: "line" }, made("summary", { text: "Ever, and the limits" }));
    limits.append(...bar(`${whose}, ever`, lifetime), made("p", { text: `Ever: ${lifetime.spent}.` }));
    limits.append(made("p", { text: `At most: ${period.atMost}.` }), made("p", { text: `At most: ${lifetime.atMost}.` }));
    return made("div", { class: "account" }, ...lines, limits);
  });
  find("accounts").replaceChildren(...shown);
}

function bodyOf(entry: Entry): string {
  const bytes = entry.body.match(/../g) ?? [];
  if (entry.type === "application/json")
    return new TextDecoder().decode(Uint8Array.from(bytes, (pair) => parseInt(pair, 16)));
  return inHex(bytes);
}

/** The first bytes of a message; what follows is counted. */
export function inHex(bytes: readonly string[]): string {
  const more = bytes.length - SHOWN;
  return bytes.slice(0, SHOWN).join(" ") + (more > 0 ? ` … and ${more} bytes more` : "");
}

export function personal(entry: Entry): boolean {
  return entry.type === "application/octet-stream";
}

/** Whether a request went to the coordinator of a federation, which is another server than the page’s. */
function toFederation(entry: Entry): boolean {
  return entry.path.endsWith("/v1/answer");
}

export function size(bytes: number): string {
  if (bytes < 2000) return `${bytes} bytes`;
  return bytes < 1e6 ? `${Math.round(bytes / 1000)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

function request(entry: Entry): HTMLElement {
  const sent = entry.body.length / 2;
  const summary = made("summary", {});
  const mark = personal(entry) ? (entry.charged ? "charged" : "free: the same as before") : "nothing of you";
  summary.append(
    made("span", { class: personal(entry) ? "sent" : "", text: `${entry.what} · ` }),
    made("span", { text: `${sent} bytes · ${mark}${entry.times === undefined ? "" : ` · ${entry.times} times`}` }),
  );
  const list = made("dl");
  const add = (term: string, value: string, code = false): void => {
    list.append(made("dt", { text: term }), made("dd", {}, code ? made("code", { text: value }) : made("span", { text: value })));
  };
  add("Request", `${entry.method} ${entry.path}`, true);
  if (sent > 0) add(`Body, ${entry.type}`, bodyOf(entry), true);
  add("What it says of you", entry.cost);
  add("When", new Date(entry.at).toLocaleString());
  add("Answer", entry.status === 0 ? "none" : `${entry.status}, ${size(entry.received)}`);
  return made("li", {}, made("details", {}, summary, list));
}

export function showJournal(entries: readonly Entry[]): void {
  const told = entries.filter((entry) => personal(entry) && !toFederation(entry));
  const others = entries.filter((entry) => personal(entry) && toFederation(entry));
  const bytes = told.reduce((sum, entry) => sum + entry.body.length / 2, 0);
  const requests = entries.length === 1 ? "1 request" : `${entries.length} requests`;
  const learning = others.length === 0 ? "" : ` ${others.length} went to a federation, whose coordinator puts the noise on: see there.`;
  const none = others.length === 0 ? "None of them carried anything of you: 0 bytes." : "";
  find("sum").textContent = `${requests}. ${told.length === 0 ? none : `${told.length} carried something of you under noise: ${bytes} bytes.`}${learning}`;
  find("journal").replaceChildren(...entries.map(request));
}

export function showRead(clicks: readonly Click[], words: Words): void {
  const count = clicks.length === 1 ? words.one : `${clicks.length} ${words.many}`;
  find("read-count").textContent = clicks.length === 0 ? "Nothing yet." : `${count}, encrypted, in this browser only.`;
  const lines = [...clicks].reverse().map((click) => made("li", { text: `${click.category.replaceAll("|", ", ") || words.uncategorised}: ${click.title || click.id}` }));
  find("read").replaceChildren(...lines);
}
