"""What the fuzzer may not do: wait for long, or read a stream for ever."""

import contextlib

import schemathesis

_LONGEST_S = 0.1
_STREAM_S = 2.0


@schemathesis.hook
def before_call(context, case, kwargs):
    """Shorten the times for which a request would be parked, or a stream read."""
    if case.path.endswith("/events/stream"):
        kwargs["timeout"] = _STREAM_S
    for part, name in ((case.query, "wait"), (case.body, "wait_s")):
        if isinstance(part, dict) and name in part:
            with contextlib.suppress(TypeError, ValueError):
                if float(part[name]) > _LONGEST_S:
                    part[name] = _LONGEST_S
