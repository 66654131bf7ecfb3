"""Checks what a job of cron would lack, compared with the shell that asks, with advice for each lack.

It computes the environment that cron(8) of Linux and of macOS gives; it must not run a job, nor read a crontab.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from opsq.cli.caller import Caller
from opsq.daemon.doctor_access import Fact
from opsq.errors import OpsqError

PATH = "/usr/bin:/bin"
"""Where cron looks for programs: cronie, the cron of Debian and that of macOS."""
SENDMAIL = "/usr/sbin/sendmail"
_FOLDERS = ("XDG_STATE_HOME", "XDG_CONFIG_HOME")
_LOCALE = ("LC_ALL", "LANG")  # Python sets LC_CTYPE by itself
_STEP_S = 1800
_YEAR_S = 366 * 86400


def examine(caller: Caller, programs: Sequence[str], environ: Mapping[str, str]) -> list[Fact]:
    """Run every check, most important first.

    Args:
        programs: what the job runs besides opsq.
        environ: the variables of the shell.
    """
    try:
        user = pwd.getpwuid(os.geteuid())
    except KeyError:
        detail = f"user {os.geteuid()} is not in the password database, so cron runs nothing for it"
        return [Fact("user", False, detail, "Use the crontab of another user.")]
    given = {"HOME": user.pw_dir, "LOGNAME": user.pw_name, "SHELL": "/bin/sh", "PATH": PATH}
    facts = [*_programs(["opsq", *programs], environ), *_variables(environ, given)]
    facts.append(_queue(caller, given))
    facts += [*_locale(environ), *_session(environ), *_zone(), _mail(user.pw_name)]
    if sys.platform == "darwin":
        detail = "macOS keeps Desktop, Documents and Downloads from it"
        facts.append(Fact("folders", True, detail, "Give /usr/sbin/cron Full Disk Access, or use other folders."))
    return facts


def _programs(names: Sequence[str], environ: Mapping[str, str]) -> Iterator[Fact]:
    """Whether cron finds each program, and the same one as the shell."""
    here = {name: _found(name, environ.get("PATH", PATH)) for name in dict.fromkeys(names)}
    there = {name: shutil.which(name, path=PATH) for name in here if "/" not in name}
    other = [name for name in there if not _is_same(here[name], there[name])]
    folders = dict.fromkeys(os.path.dirname(found) for name in other if (found := here[name]))
    line = f"Begin the crontab with: PATH={':'.join([*folders, PATH])}"
    for name, found in here.items():
        check = f"program {name}"
        if found is None:
            yield Fact(check, False, "found neither here nor by cron", "Install it, or write its whole path.")
        elif name not in there:
            is_whole = os.path.isabs(name)
            advice = f"Write {found}: cron starts a job in the home folder."
            yield Fact(check, is_whole, found, "" if is_whole else advice)
        elif name not in other:
            yield Fact(check, True, there[name] or "")
        else:
            detail = f"cron takes {there[name]}" if there[name] else f"cron looks only in {PATH}"
            yield Fact(check, False, f"{found} here; {detail}", line)


def _found(name: str, path: str) -> str | None:
    """What the shell runs by this name; opsq is what runs now, however it was started."""
    ours = os.path.abspath(sys.argv[0])
    if name == "opsq" and os.path.basename(ours) == "opsq":
        return ours
    found = shutil.which(name, path=path)
    return None if found is None else os.path.abspath(found)


def _is_same(first: str | None, second: str | None) -> bool:
    return first is not None and second is not None and os.path.realpath(first) == os.path.realpath(second)


def _variables(environ: Mapping[str, str], given: Mapping[str, str]) -> Iterator[Fact]:
    """Variables that say what opsq does, and that cron does not set."""
    found = {name: text for name, text in sorted(environ.items()) if text and name.startswith("OPSQ_")}
    found |= {name: environ[name] for name in _FOLDERS if environ.get(name)}
    if environ.get("HOME", given["HOME"]) != given["HOME"]:
        found["HOME"] = environ["HOME"]
    if found:
        shown = found | {name: "..." for name in found if name == "OPSQ_TOKEN"}
        lines = "; ".join(f"{name}={shlex.quote(text)}" for name, text in shown.items())
        yield Fact("variables", False, f"set here, not by cron: {', '.join(found)}", f"In the crontab: {lines}")
    else:
        yield Fact("variables", True, "cron lacks none that opsq reads")


def _queue(caller: Caller, given: Mapping[str, str]) -> Fact:
    """Whether a job would use the same queue."""
    try:
        theirs = caller.settings_in(given)
        ours = caller.settings
    except OpsqError as error:
        return Fact("queue", False, error.message, error.hint)
    places = [settings.address or settings.socket for settings in (ours, theirs)]
    if ours.state_dir == theirs.state_dir and places[0] == places[1]:
        return Fact("queue", True, f"the same as here: {theirs.state_dir}")
    ours_at, theirs_at = places if ours.state_dir == theirs.state_dir else (ours.state_dir, theirs.state_dir)
    advice = "Give the job the variables above, or write a settings file: opsq.toml(5)."
    return Fact("queue", False, f"{theirs_at}, but {ours_at} here", advice)


def _locale(environ: Mapping[str, str]) -> Iterator[Fact]:
    name = next((name for name in _LOCALE if environ.get(name)), "")
    if not name or environ[name] in {"C", "POSIX"}:
        yield Fact("locale", True, "C, as here")
        return
    advice = f"If programs sort text or need letters beyond ASCII: {name}={environ[name]} in the crontab."
    yield Fact("locale", True, f"C, where the system sets none; {environ[name]} here", advice)


def _session(environ: Mapping[str, str]) -> Iterator[Fact]:
    if environ.get("XDG_RUNTIME_DIR"):
        detail = "XDG_RUNTIME_DIR is not set by cron; opsq does not need it"
        advice = f"For systemctl --user: XDG_RUNTIME_DIR={environ['XDG_RUNTIME_DIR']} in the crontab."
        yield Fact("session", True, detail, advice)


def _zone() -> Iterator[Fact]:
    """The zone of the system, and when its clocks change next."""
    own = os.environ.pop("TZ", None)
    try:
        time.tzset()
        zone, changes = time.strftime("%Z"), list(_changes(int(time.time())))
    finally:
        if own is not None:
            os.environ["TZ"] = own
        time.tzset()
    detail, advice = f"the system's, {zone}", ""
    if own:
        detail += f"; TZ={own} here"
        advice = "Times in a crontab, and in the job, are the system's."
    yield Fact("time zone", True, detail, advice)
    if changes:
        detail = "; ".join(changes)
        yield Fact("clocks", True, detail, "A job at such a time may run late, twice or not at all: choose another.")


def _changes(begin: int) -> Iterator[str]:
    """The changes of the local clocks within a year, in words."""
    for at in range(begin - begin % _STEP_S, begin + _YEAR_S, _STEP_S):
        before, after = time.localtime(at - 1), time.localtime(at)
        step_s = after.tm_gmtoff - before.tm_gmtoff
        if step_s:
            first, last = sorted((time.gmtime(at + before.tm_gmtoff), time.gmtime(at + after.tm_gmtoff)))
            what = "left out" if step_s > 0 else "twice"
            yield f"{time.strftime('%Y-%m-%d %H:%M', first)} to {time.strftime('%H:%M', last)} {what}"


def _mail(user: str) -> Fact:
    advice = "Send to /dev/null what is no error, such as the id that `opsq submit` prints."
    if os.path.exists(SENDMAIL):
        return Fact("mail", True, f"what a job prints is mailed to {user}, or to MAILTO", advice)
    return Fact("mail", True, f"there is no {SENDMAIL}, so what a job prints is lost", "Add 2>> FILE to the job.")
