"""Files and other libraries' objects, translated to thalweg's values and back; no more."""
