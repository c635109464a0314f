"""What holds for every test: Ctrl-C reaches the processes they start, and how hard the property tests look.

Few examples by default, many and fresh ones with HYPOTHESIS_PROFILE=soak.
"""

import os
import signal

from hypothesis import HealthCheck, settings

settings.register_profile("fast", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("fast"), derandomize=True)
settings.register_profile("soak", settings.get_profile("fast"), max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "fast"))

# A shell that runs the tests in the background ignores SIGINT, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
