"""Three learners in plain torch, each trained from a store of recorded episodes.

Data flows one way: `recording` fills a store, `cloning`, `q_learning` and `sequence_model` learn from it,
`playing` evaluates the policies, and `curves` draws their learning curves. `../train.py` is the command line.
"""
