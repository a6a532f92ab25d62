"""The verdict: answers against what a formula model expects and against the ops' contract.

result.py          a case's result: disagreements, errors, evidence
judge.py           values; contract_judge.py: errors
divergences.py     where TensorFlow is known to disagree with the contract
settings.py        what a run is judged by
"""
