"""Files and other libraries' objects, translated to thalweg's values and back, and nothing more."""
