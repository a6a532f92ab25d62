"""What a run leaves behind: its record (record.py), and the reports that are generated from it.

record.py     the record: every case, where and how it was run; the JSON file
environment.py   where it was run
overview.py   verdict, claims that failed, what was not covered
summary.py    counts and worst errors by group, execution modes and notes, from a record
terminal.py   what is printed
page.py       one HTML page with tables and plots, from the template page.html
report_command.py   the files of any run, also from its JSON file
"""
