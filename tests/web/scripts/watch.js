// Before a query goes out, look into the ledger: window.seen is what the disk held at that moment.
const real = window.fetch.bind(window);
window.seen = [];
const done = (request) => new Promise((resolve) => (request.onsuccess = () => resolve(request.result)));
window.fetch = async (address, how) => {
  if (how?.headers?.["Content-Type"] === "application/octet-stream") {
    const database = await done(indexedDB.open("veilrec"));
    const record = await done(database.transaction("ledger").objectStore("ledger").get("record"));
    database.close();
    window.seen.push(record.accounts.map((account) => account.lifetime.epsilon));
  }
  return real(address, how);
};
