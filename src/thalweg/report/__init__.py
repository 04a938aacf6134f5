"""Self-contained HTML pages: no request to any host, readable on a phone, light and dark."""

from thalweg.report.page import Section, page

__all__ = ["Section", "page"]
