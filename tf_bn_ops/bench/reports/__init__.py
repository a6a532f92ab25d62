"""Tables, sentences and plots of a run.

table.py    a table as text, and numbers as cells
report.py   the tables and sentences of a run
plots.py    its plots
docs.py     the recorded run in README.md and docs/
"""
