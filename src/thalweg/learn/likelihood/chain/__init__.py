"""The chain of frozen rates: exact exponentials, their derivatives, and the search along it."""
