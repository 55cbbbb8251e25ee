"""The commands, options and arguments as a table, from which the shell's completion is quick.

    python -m episodelake.terminal.command_table

writes it to `episodelake_command/commands.json`. The tests fail where it is not what the program has.
"""

from __future__ import annotations

import json
from typing import Any

import typer.main

from episodelake_command.completing import STORES, TABLE
from episodelake_command.folders import complete_stores

from .app import app
from .completion import complete_tables
from .plotting import complete_kinds

#: What offers the same words whatever the store is.
_FIXED = (complete_tables, complete_kinds)


def command_table() -> dict[str, Any]:
    """The program, as `completing.offered` takes it."""
    group: Any = typer.main.get_command(app)
    return _of_group(group, group.context_class(group, **group.context_settings))


def _of_group(group: Any, context: Any) -> dict[str, Any]:
    shown = {name: each for name, each in group.commands.items() if not each.hidden}
    return {"commands": {name: _of_member(each, context) for name, each in shown.items()}}


def _of_member(command: Any, parent: Any) -> dict[str, Any]:
    context = command.context_class(command, parent=parent)
    of = _of_group if hasattr(command, "commands") else _of_command
    return {"help": command.get_short_help_str(), **of(command, context)}


def _of_command(command: Any, context: Any) -> dict[str, Any]:
    params = command.get_params(context)
    options = [each for each in params if each.param_type_name == "option" and not each.hidden]
    return {
        "arguments": [_completes(each) for each in params if each.param_type_name == "argument"],
        "options": [
            {
                "names": _names(each),
                "help": each.help,
                "value": not (each.is_flag or each.count),
                "repeated": each.multiple,
                "completes": _completes(each),
            }
            for each in options
        ],
    }


def _names(option: Any) -> list[str]:
    names = [*option.opts, *option.secondary_opts]
    # Those of the help come out of a set.
    return sorted(names) if option.name == "help" else names


def _completes(param: Any) -> str | list[str] | None:
    """What is known of a value without the program; None where it has to be asked."""
    offers: Any = getattr(param.type_descriptor.parameter_info, "autocompletion", None)
    if param.nargs != 1:
        return None
    if offers is complete_stores:
        return STORES
    return offers("") if offers in _FIXED else None


if __name__ == "__main__":
    TABLE.write_text(json.dumps(command_table(), indent=1, ensure_ascii=False) + "\n", "utf-8")
