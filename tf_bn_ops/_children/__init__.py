"""A folder that `python -m tf_bn_ops run` puts on PYTHONPATH, for sitecustomize.py in it."""
