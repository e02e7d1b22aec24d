"""Language models for the Apple Neural Engine: convert, verify and run Core ML packages on any machine."""

__version__ = "0.1.0"
