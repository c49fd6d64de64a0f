"""Reports for people: tables, plots, HTML pages, the privacy statement as a page."""
