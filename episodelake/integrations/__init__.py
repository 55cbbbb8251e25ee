"""Adapters that let other packages read and write stores."""
