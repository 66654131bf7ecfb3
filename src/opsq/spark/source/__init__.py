"""The data source `opsq`: what Spark calls, and what that does."""

import sys

if getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", None) == "pyspark.daemon":
    from opsq.spark.session.worker_daemon import hush

    hush(sys.modules["__main__"])  # a worker of Spark's own, as those that plan and that read streams always are
