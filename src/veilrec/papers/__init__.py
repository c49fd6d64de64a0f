"""Reproduced tables and figures as package data: one YAML file for each, read by `veilrec.report.reproduce`.

A file has the fields of `Experiment` (see `veilrec/report/reproduce/experiment.py`) but for its name, which is that of
the file. What is not plain data is written shorter:

    defaults:                       # keys of every row that does not say otherwise
      presets: [tuned]
    parts:                          # rows that several panels share, by YAML anchors; not read on its own
      - &levels [{label: EASE, method: ease}]
    panels:
      - source: Table 2
        rows:
          - *levels                 # lists in lists are one list
          - label: DP-FedMF, epsilon $at
            method: dp-fedmf
            at: [1, 2, 4]           # a row for each, with its text in place of $at
            settings: {privacy.epsilon: $at}
          - at: [1, 8]              # a group: its keys are those of its rows, settings first
            rows: [...]
        printed:                    # the paper's numbers, digit by digit
          columns: [auc, mrr]
          unit: per cent            # left out where they are shares or totals
          rows:
            DP-FedMF, epsilon 1: [58.41 ± 0.04, 27.19 ± 0.05]
"""

from __future__ import annotations

from importlib.resources import files

NAMES = (  # as `veilrec reproduce` lists them
    *("frontier", "news-frontier"),
    *("fedmf-table2", "fedmf-accuracy", "fedmf-communication", "fedmf-ablation"),
    *("fedncf-accuracy", "fedncf-communication", "fedncf-ablation"),
    *("fedmf-lean", "dp-fedmf-curve"),
    *("fednewsrec-table2", "fednewsrec-fig4", "fednewsrec-fig5", "fednewsrec-fig6", "fednewsrec-fig7"),
    *("privaterec-training", "privaterec-serving", "privaterec-budget"),
    *("privaterec-padding", "privaterec-basis", "privaterec-dimension"),
    *("privrec-table1", "privrec-table2", "privrec-fig2"),
    *("dp-privrec-fig3", "dp-privrec-table3", "dp-privrec-fig5"),
)


def read_text(name: str) -> str:
    """Read the YAML file of a table or figure."""
    return files(__name__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
