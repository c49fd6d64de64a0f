// The built client under node, with a store in memory and a server that fails: node --test tests/web/client.test.mjs
import assert from "node:assert/strict";
import test from "node:test";

const veilrec = await import(new URL("../../src/veilrec/serving/static/veilrec.js", import.meta.url));

const OFFER = { mode: "interest", kind: "interest", size: 4, epsilon: 1, delta: 0, unit: "history", adjacency: "replace-one" };

class MemoryStore {
  values = new Map();
  get = async (store, key) => this.values.get(`${store} ${key}`);
  put = async (store, key, value) => void this.values.set(`${store} ${key}`, value);
  delete = (store, key) => this.values.delete(`${store} ${key}`);
  change = async (_, act) => act(this);
}

/** A client with a loaded release that offers one private query, and the pool of an earlier visit if `kept`. */
async function opened(kept) {
  const store = new MemoryStore();
  const ledger = await veilrec.Ledger.open(store, veilrec.BUDGETS);
  const client = new veilrec.Client(store, new veilrec.Outbox(store, ""), ledger, new veilrec.History(store), new veilrec.SecureSource());
  client.history.clicks = async () => [];
  client.kept = async () => (kept ? {} : undefined);
  client.ranked = async (_pool, mode, _count, notice) => ({ mode, notice });
  const encoder = { user: () => new Float64Array(4), basis: null, program: { ranks_with: "whole" } };
  client.person = () => ({ user: encoder.user(), alpha: [0.1, 0.2, 0.3, 0.4], clicks: [] });
  const manifest = { name: "news", version: 1, family: "news", offers: [OFFER], sizes: { dim: 4 }, files: {} };
  client.loaded = { manifest, catalogue: null, away: false, encoder, serving: {}, period: "news 1", model: "m" };
  return { client, ledger };
}

async function answering(fetch, act) {
  const real = globalThis.fetch;
  globalThis.fetch = fetch;
  try {
    return await act();
  } finally {
    globalThis.fetch = real;
  }
}

const lost = async () => {
  throw new TypeError("connection reset");
};
const failing = async () => new Response("", { status: 500 });

for (const [name, fetch, sent] of [
  ["a lost connection", lost, "may have been sent"],
  ["a 5xx", failing, "was sent"],
])
  test(`${name} after a charged query: the notice says that it was charged, once`, async () => {
    const { client, ledger } = await opened(true);
    const ask = () => answering(fetch, () => client.front("interest", 10, { ask: true }));
    const { notice } = await ask();
    assert.match(notice, /The server is away/);
    assert.ok(notice.includes(`A private query ${sent} and its epsilon was charged (`), notice);
    assert.ok(notice.includes(veilrec.line(veilrec.statementOf(OFFER))), notice);
    assert.equal((await ledger.report("news 1"))[0].messages, 1);
    assert.doesNotMatch((await ask()).notice, /charged/); // the same query again is free
    assert.equal((await ledger.report("news 1"))[0].messages, 1);
  });

test("without earlier news the error says that the query was charged", async () => {
  const { client } = await opened(false);
  const ask = () => answering(lost, () => client.front("interest", 10, { ask: true }));
  await assert.rejects(ask, /no news were fetched before\. A private query may have been sent and its epsilon was charged/);
});

test("a request that costs nothing is not reported as charged", async () => {
  const { client } = await opened(true);
  const { notice } = await answering(lost, () => client.front("none-sent", 10, { ask: true }));
  assert.equal(notice, "The server is away: these are the last news.");
});

test("all noise of a query comes from crypto.getRandomValues, and Math.random has no part in it", async () => {
  const [random, real] = [Math.random, crypto.getRandomValues];
  const asked = async (word) => {
    let drawn = 0;
    const bodies = [];
    Math.random = () => assert.fail("Math.random was called");
    crypto.getRandomValues = (array) => {
      drawn += array.byteLength;
      return array instanceof BigUint64Array ? array.fill(word) : real.call(crypto, array);
    };
    try {
      const { client } = await opened(true);
      const sending = async (_, how) => (bodies.push(veilrec.hex(new Uint8Array(how.body))), failing());
      await answering(sending, () => client.front("interest", 10, { ask: true }));
    } finally {
      [Math.random, crypto.getRandomValues] = [random, real];
    }
    assert.ok(drawn > 0, "nothing was drawn from the machine's generator");
    return bodies.filter((body) => body.length > 0);
  };
  const [truth, again, lie] = [await asked(2n ** 64n - 1n), await asked(2n ** 64n - 1n), await asked(0n)];
  assert.equal(truth.length, 1);
  assert.deepEqual(again, truth);
  assert.notDeepEqual(lie, truth);
});
