"""Mechanisms, accounting, guarantees and the client's privacy ledger."""
