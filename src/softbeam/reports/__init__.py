"""Results for people: tables, verdicts, charts, the HTML page, analysis of runs."""
