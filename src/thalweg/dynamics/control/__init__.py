"""Control: the cheapest potential to add, over time or at a few states."""

from thalweg.dynamics.control.few import Intervention, push_few
from thalweg.dynamics.control.steering import Steering, steer

__all__ = ["Intervention", "Steering", "push_few", "steer"]
