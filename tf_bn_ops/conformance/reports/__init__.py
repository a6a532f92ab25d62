"""What a run leaves behind: its record (record.py), and the reports that are generated from it.

record.py     the record: every case, where and how it was run; the JSON file
overview.py   verdict, claims that failed, what was not covered
summary.py    counts and worst errors by group, execution modes and notes, from a record
terminal.py   what is printed
junit.py      JUnit XML, for CI systems
page.py       one HTML page with tables and plots, from the template page.html
report_command.py writes the reports of a run, also of the JSON file of an earlier one
"""
