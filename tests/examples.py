"""How many examples a property test looks at that needs another number than most: it follows the profile, too."""

from hypothesis import settings

USUAL = settings.get_profile("fast").max_examples


def examples(count: int) -> int:
    """`count` in `make test`, a third of it in `make check`, far more in `make soak`."""
    profile = settings.default
    assert profile is not None
    return max(1, count * profile.max_examples // USUAL)
