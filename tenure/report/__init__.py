"""
What is drawn for people: the map in the terminal and the report page.

Turns rows and objects that others read into values, and values into text and HTML; opens no
ledger, reads no input, decides nothing.
"""
