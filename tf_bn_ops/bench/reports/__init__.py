"""Tables, sentences and plots of a run.

text_table.py    a table as text, and numbers as cells
report.py        the tables and sentences of a run
plots.py         its plots
recorded_run.py  the recorded run in README.md and docs/
"""
