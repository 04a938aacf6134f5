"""Paths between end points inside the simplex: Newton on collocation equations."""
