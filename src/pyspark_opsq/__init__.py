"""Lets Spark find the data source "opsq" without registration.

It looks for `DefaultSource` in packages named `pyspark_*`.

This file must import cheaply and never fail, since an error here would break every Python data source of the session.
"""

from opsq.spark.source.data_source import OpsqDataSource as DefaultSource

__all__ = ["DefaultSource"]
