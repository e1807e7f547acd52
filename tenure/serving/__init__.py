"""
The composition roots of the services: read settings, build, run, stop in order.

No rule of the domain lives here. Environment, clock and signals are touched here and nowhere else.
"""
