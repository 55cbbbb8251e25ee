"""RLDS datasets as TFDS writes them, read without TensorFlow.

`format.py` recognises the folders and joins the steps, `exported.py` reads those of our export.
Records and their features are in `store/tfrecord.py`.
"""
