"""The transport geometry of a kernel."""
