"""
One module per group of commands. Each has `register(app)` and imports typer alone at the top.

Whatever needs numpy, SQLAlchemy or a Kubernetes client is imported inside the command's body, so
that `tenure --help` stays light.
"""
