"""MIL as text, the form in which compiled models (.mlmodelc) hold their program.

The text is turned into the messages that a .mlpackage holds, so that one reader serves both forms.
"""
