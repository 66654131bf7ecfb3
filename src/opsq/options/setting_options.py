"""The settings of the daemon as options of the verbs that start it, and how long a stop may take.

It must not read any setting: that is done by `opsq.settings`, which says where each value came from.
"""

from __future__ import annotations

from opsq.options.option import GLOBAL, OptionSet, duration, option
from opsq.settings import SETTINGS

DRAIN = option("--drain D", "How long to wait for what is reserved.", duration, shown="the setting drain_s")

SETTING_OPTIONS = OptionSet(
    dict,
    {
        setting.name: option(
            f"{setting.flag} {setting.kind.metavar}".rstrip(),
            f"{setting.text[0].upper()}{setting.text[1:]}.",
            environment=setting.variable,
            shown=setting.shown_default,
        )
        for setting in SETTINGS
        if setting.name not in GLOBAL and not setting.is_clients
    },
)
"""Every setting that a daemon reads and that is not a global option."""
