"""
The shared language: resources, quantities, devices, requests, annotations, events and their fold.

It may import the standard library and itself, nothing else: no clock, no file, no network, no
database, no log. What a Pod asks and what a node has become plain values here, and only here.
"""
