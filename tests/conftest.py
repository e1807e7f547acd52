"""What every test shares: one profile for property tests, the same on a laptop and in CI."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No deadline: the machine is shared, and a slow example is not a wrong one. Derandomised, so that
# a commit that passes here passes everywhere; `make slow` explores with fresh seeds.
settings.register_profile(
    "tenure", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tenure")
