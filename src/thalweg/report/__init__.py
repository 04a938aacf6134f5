"""Self-contained HTML pages: no request to any host, readable on a phone, light and dark."""

from thalweg.report.findings import caution, findings, flags, rejected, silences
from thalweg.report.fit import fit_page
from thalweg.report.page import Section, Table, page
from thalweg.report.svg import Picture

__all__ = [
    "Picture",
    "Section",
    "Table",
    "caution",
    "findings",
    "fit_page",
    "flags",
    "page",
    "rejected",
    "silences",
]
