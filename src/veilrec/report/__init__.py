"""What came of it, for people: tables, curves, the privacy statement, one page."""
