/** What the page calls things: stories of a front page, or the items of a catalogue. */
import type { Manifest } from "../src/index.js";

export interface Words {
  readonly name: string;
  readonly motto: string;
  readonly heading: string;
  readonly skip: string;
  readonly fetching: string;
  readonly refresh: string;
  readonly one: string;
  readonly many: string;
  readonly did: string; // what a person did with one
  readonly didHeading: string;
  readonly back: string;
  readonly body: string;
  readonly nothingYet: string;
  readonly uncategorised: string;
  readonly list: string;
  readonly sendNothing: string;
  readonly notPersonal: string;
  readonly nothingToSpend: string;
}

const NEWS: Words = {
  name: "The Veil",
  motto: "News that learn without watching",
  heading: "Front page",
  skip: "Skip to the news",
  fetching: "Fetching the news …",
  refresh: "Fetch news",
  one: "1 story",
  many: "stories",
  did: "read",
  didHeading: "What you read",
  back: "Back to the front page",
  body:
    "This release has headlines only, so there is no text below this one. Where there is, it comes with the list, for" +
    " every story of it: opening a story fetches nothing, and no request says what you read.",
  nothingYet: "You have read nothing yet: the list of somebody new. Open a story, and it learns.",
  uncategorised: "news",
  list: "Stories, best first",
  sendNothing: "The browser downloads the news that everybody gets, and ranks them itself.",
  notPersonal: "The list that everybody gets. What you read stays here, unused.",
  nothingToSpend: "Nothing was spent, and nothing can be: this release is never asked anything personal.",
};

const CATALOGUE: Words = {
  name: "The Veil",
  motto: "A catalogue that learns without watching",
  heading: "For you",
  skip: "Skip to the list",
  fetching: "Fetching the catalogue …",
  refresh: "Look for a newer release",
  one: "1 item",
  many: "items",
  did: "picked",
  didHeading: "What you picked",
  back: "Back to the list",
  body:
    "Noted in this browser, in its order, and nowhere else: the list is ranked here, with a catalogue that everybody" +
    " downloads alike. Opening this fetched nothing, and no request says what you picked.",
  nothingYet: "You have picked nothing yet. Open something, and the list learns.",
  uncategorised: "other",
  list: "Items, best first",
  sendNothing: "The browser has the whole catalogue, as everybody, and ranks it itself, by what you picked in its order.",
  notPersonal: "The list that everybody gets, ranked here too. What you picked stays here, unused.",
  nothingToSpend: "Nothing was spent, and nothing can be: this release is never asked anything.",
};

export function wordsOf(manifest: Manifest | null): Words {
  return manifest?.family === "catalogue" ? CATALOGUE : NEWS;
}
