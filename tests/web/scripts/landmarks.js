// What somebody who cannot see the page has to go by.
const all = (css) => [...document.querySelectorAll(css)];
const named = (id) => document.getElementById(id)?.textContent;
const name = (e) => e.getAttribute("aria-label") ?? e.labels?.[0]?.textContent ?? (e.textContent || e.alt || "");
const labelled = (e) => e.hasAttribute("aria-label") || named(e.getAttribute("aria-labelledby"));
const points = (e) => e.getAttribute("aria-labelledby") ?? e.getAttribute("aria-describedby");
const ids = all("[id]").map((e) => e.id);
const values = ["aria-valuemin", "aria-valuemax", "aria-valuenow"];
return {
  lang: document.documentElement.lang,
  title: document.title,
  h1: all("h1").length,
  landmarks: ["header", "main", "aside", "footer"].map((tag) => all(tag).length),
  unnamed: all("button, a, input, summary, [role=meter]").filter((e) => !name(e).trim()).length,
  pictures: all("img").filter((e) => e.getAttribute("alt") === null).length,
  drawings: all("svg").filter((e) => !e.closest("[aria-hidden=true]")).length,
  regions: all("section, dialog, ol, aside").filter((e) => !labelled(e)).length,
  live: all("[aria-live=polite], [role=status]").length,
  alert: all("[role=alert]").length,
  twice: ids.length - new Set(ids).size,
  lost: all("[aria-labelledby], [aria-describedby]").filter((e) => !document.getElementById(points(e))).length,
  order: all("h1, h2, h3").map((e) => Number(e.tagName[1])),
  positive: all("[tabindex]").filter((e) => e.tabIndex > 0).length,
  meters: all("[role=meter]").map((e) => values.every((value) => e.hasAttribute(value))),
};
