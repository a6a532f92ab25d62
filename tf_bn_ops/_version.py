"""The version of the package; packaging, build_info.json and the API read it here."""

__version__ = "0.1.0"
