"""
${message}.

Runs before the code it serves.
"""

from __future__ import annotations

from alembic import op
${imports if imports else ""}

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """State what appears."""
    ${upgrades if upgrades else "pass"}
