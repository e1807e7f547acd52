"""
What the database refuses by itself (`rules`: one table for both), and the views it answers with.

It may not be edited once a release has run it: a change is a new constant and a new migration.
"""
