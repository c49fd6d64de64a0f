"""Reports: privacy statements, HTML pages from templates, tables and plots."""
