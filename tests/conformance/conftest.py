"""Makes the helpers of this folder importable from those below: pytest adds a conftest's folder."""
