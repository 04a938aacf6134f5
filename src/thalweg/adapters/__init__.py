"""Files and other libraries' objects, translated to thalweg's values and back, and nothing more."""

from thalweg._optional import optional

optional("pandas", extra="cli", what="reading files")
