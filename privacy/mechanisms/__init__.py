"""Mechanisms: frozen values that privatise data and say, as an event, what they did."""

from privacy.mechanisms.clipping import clip_l2, project_simplex
from privacy.mechanisms.randomized_response import RandomizedResponse

__all__ = ["RandomizedResponse", "clip_l2", "project_simplex"]
