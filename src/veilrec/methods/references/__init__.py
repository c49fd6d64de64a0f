"""Reference methods that any other is compared with: popularity, item-item models, DPALS, SASRec."""
