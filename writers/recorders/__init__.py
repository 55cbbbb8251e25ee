"""Recorders of Gymnasium, vector, pool and PettingZoo environments."""
