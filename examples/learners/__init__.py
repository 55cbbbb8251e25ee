"""Three learners in plain torch, each trained from a store of recorded episodes.

Data runs one way: `recording` fills a store by playing, `cloning`, `q_learning` and `sequence_model` learn
from it, `playing` lets what they learnt play, and `curves` draws how they came to it. `../train.py` is the
command line.
"""
