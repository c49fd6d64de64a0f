// The built module under node: node --test tests/web/vectors.test.mjs
import { readdirSync, readFileSync } from "node:fs";
import test from "node:test";
import { allChecks } from "./checks.mjs";

const veilrec = await import(new URL("../../src/veilrec/serving/static/veilrec.js", import.meta.url));
const folder = new URL("./vectors/", import.meta.url);
const vectors = Object.fromEntries(
  readdirSync(folder).map((name) => [name.replace(".json", ""), JSON.parse(readFileSync(new URL(name, folder), "utf8"))]),
);
for (const [name, act] of allChecks(veilrec, vectors)) test(name, act);
