"""What tools/generate_ops writes from the table of ops, tf_bn_ops/spec/ops.py."""
