# SPDX-License-Identifier: Apache-2.0
"""Actions that run on the controller alone, and ask no box."""

from __future__ import annotations

from ansible.plugins.action import ActionBase


class Refused(Exception):
    """The text is for the operator."""


class ControllerAction(ActionBase):
    """One with the arguments of OPTIONS, that decides by decide()."""

    TRANSFERS_FILES = False
    OPTIONS: tuple = ()
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        self.vars, args = task_vars or {}, dict(self._task.args)
        try:
            unknown = sorted(set(args) - set(self.OPTIONS))
            if unknown:
                raise Refused(f"{self._task.action} has no option {', '.join(unknown)}; it has {', '.join(sorted(self.OPTIONS))}")
            result.update(self.decide(args))
        except (Refused, ValueError) as err:
            result.update(failed=True, msg=str(err))
        except OSError as err:
            result.update(failed=True, msg=f"{err.filename or 'a file of the record'}: {err.strerror}")
        return result

    def decide(self, args):
        """The answer of the module."""
        raise NotImplementedError


def flag(value):
    """A truth value, of an option that may come as text."""
    return value if isinstance(value, bool) else str(value).strip().lower() in ("1", "true", "yes", "on", "y", "t")


def names(value):
    """A list of names, of a list, of a text with commas or spaces, or of one number."""
    if isinstance(value, str):
        value = value.replace(",", " ").split()
    return [str(v) for v in (value if isinstance(value, (list, tuple, set)) else [] if value is None else [value])]
