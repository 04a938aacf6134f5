"""Self-contained HTML pages: no request to any host, readable on a phone, light and dark."""

from thalweg.report.findings import findings, flags
from thalweg.report.fit import fit_page
from thalweg.report.page import Section, page

__all__ = ["Section", "findings", "fit_page", "flags", "page"]
