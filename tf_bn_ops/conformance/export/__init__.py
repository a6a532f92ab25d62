"""Cases for systems that are not TensorFlow.

export_command.py   writes cases, right answers and bounds into a folder, models/portable_judge.py
                    as judge.py beside them
"""
