"""
The way of an event into the database: one writer, one transaction, one statement after the other.

`append` is the transaction, `lane` and `commands` share it among many; the rest makes it quick.
"""
