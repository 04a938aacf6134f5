"""The likelihood of the plain model on graphs of 30 to 1000 states, by sparse elimination."""
