"""Cases for systems that are not TensorFlow.

export_command.py     writes cases, right answers and bounds into a folder
portable_judge.py     goes with them as judge.py, and needs NumPy alone
"""
