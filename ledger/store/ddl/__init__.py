"""
What the database refuses by itself, and the views it answers with: one module per database.

It may not be edited once a release has run it: a change is a new constant and a new migration.
"""
