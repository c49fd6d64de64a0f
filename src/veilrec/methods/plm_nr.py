"""PLM-NR: a frozen language model reads the titles."""

from __future__ import annotations

from veilrec.methods.news_common import PlmConfig, centralised

METHOD = centralised(
    "plm-nr",
    paper="Wu et al., Empowering News Recommendation with Pre-trained Language Models, SIGIR 2021",
    model="MiniLM sentence vectors (frozen), self-attention over clicks",
    summary="titles by a public language model, users by self-attention over their clicks",
    config=PlmConfig,
    rounds=5,
    deviations=("The language model is frozen: its sentence vectors are computed once.",),
)
