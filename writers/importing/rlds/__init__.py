"""RLDS datasets as TFDS writes them, read without TensorFlow.

`format.py` recognises the folders and joins the steps, `tfrecord.py` reads records and their features.
"""
