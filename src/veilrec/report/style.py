"""The look of a report: one column, light or dark as the reader's system is, and fit for paper."""

CSS = """
:root {
  color-scheme: light dark;
  --ink: #1c2028; --soft: #5b6472; --paper: #ffffff; --line: #d9dde3; --mark: #eef3f8;
}
@media (prefers-color-scheme: dark) {
  :root { --ink: #e7eaef; --soft: #a3acb9; --paper: #15181d; --line: #363c46; --mark: #1f2630; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 56rem; margin: 0 auto; padding: 2rem 1.2rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .6rem; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; padding-top: .8rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 0 0 .3rem; }
.lead { font-size: 1.08rem; }
.note, figcaption { color: var(--soft); font-size: .9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .55rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
thead th { color: var(--soft); font-weight: 600; }
.number { text-align: right; }
tbody tr:first-child { background: var(--mark); }
figure { margin: 1.4rem 0 2rem; }
figure svg { width: 100%; height: auto; color: var(--ink); }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 1.5rem; }
ol { margin: 0; padding-left: 1.6rem; }
code { font: .88em ui-monospace, monospace; overflow-wrap: anywhere; }
dt { margin-top: .7rem; }
dd { margin: 0; color: var(--soft); }
dd p { margin: .1rem 0; }
.facts { display: grid; grid-template-columns: minmax(8rem, auto) 1fr; gap: .3rem 1.2rem; }
.facts dt { margin: 0; color: var(--soft); }
.facts dd { color: var(--ink); min-width: 0; overflow-wrap: anywhere; }
@media print { body { font-size: 11pt; } section { break-inside: avoid; } }
"""
