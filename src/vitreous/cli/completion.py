"""`vitreous completion`: print the script with which a shell completes vitreous' commands and their values.

The script puts the line up to the cursor into VITREOUS_COMPLETE and runs the same command, which then prints what could
follow: one value and its description per line, separated by a tab. Nothing means file names, which shells know better.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Annotated, Any

from typer import Argument, Typer

from vitreous.cli.completers import COMPLETERS, Completer, load_words
from vitreous.errors import ConfigError

VARIABLE = "VITREOUS_COMPLETE"

# readline has split the word at "=" and ":" (COMP_WORDBREAKS), so what is before them is not part of a reply
_BASH = r"""_vitreous() {
    local line="${COMP_LINE:0:COMP_POINT}" word value breaks="" before=""
    COMPREPLY=()
    word="${line##*[[:space:]]}"
    [[ $word == --*=* ]] && word="${word#*=}"
    [[ $COMP_WORDBREAKS == *=* ]] && breaks+="="
    [[ $COMP_WORDBREAKS == *:* ]] && breaks+=":"
    [[ -n $breaks ]] && before="${word%"${word##*[$breaks]}"}"
    while IFS=$'\t' read -r value _; do
        value="${value#"$before"}"
        [[ $value == "~"* ]] || printf -v value %q "$value"
        COMPREPLY+=("$value")
    done < <(VITREOUS_COMPLETE="$line" "${COMP_WORDS[0]}" 2>/dev/null)
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[/=] ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -o bashdefault -o default -F _vitreous vitreous
"""

_ZSH = r"""#compdef vitreous
_vitreous() {
    local line value
    local -a whole begun
    for line in "${(@f)$(VITREOUS_COMPLETE="${(j: :)words[1,CURRENT]}" "${(Q)words[1]}" 2>/dev/null)}"; do
        value="${line%%$'\t'*}"
        [[ -z $value ]] && continue
        line="${value//:/\\:}:${line#*$'\t'}"
        [[ $value == *[/=] ]] && begun+=("${line%:}") || whole+=("${line%:}")
    done
    [[ $PREFIX == --*=* ]] && compset -P 1 '*='
    if (( ${#whole} + ${#begun} )); then
        _describe -t values value whole -- begun -S ''
    else
        _files
    fi
}
compdef _vitreous vitreous
"""

_FISH = r"""function __vitreous_complete
    set -lx VITREOUS_COMPLETE (commandline -cp)
    set -l found (eval (commandline -o)[1] 2>/dev/null)
    if test (count $found) -gt 0
        set -l option (string match -r -- '^--[^=]*=' (commandline -ct))
        printf "$option%s\n" $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c vitreous -f -a '(__vitreous_complete)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def completion(
    shell: Annotated[str, Argument(help="bash, zsh or fish.")],
) -> None:
    """Print the script that completes commands, options and values on TAB: eval "$(vitreous completion bash)"."""
    if shell not in SCRIPTS:
        raise ConfigError(f"there is no completion for {shell!r}; choose from {', '.join(SCRIPTS)}")
    load_words()  # collected now, so that the first TAB is as quick as the others
    print(SCRIPTS[shell], end="")


def print_completions(app: Typer) -> None:
    """Print what could follow the line in VITREOUS_COMPLETE; nothing where that is a file name, or whatever fails."""
    from typer._completion_classes import FishComplete

    os.environ["_TYPER_COMPLETE_ARGS"] = os.environ.pop(VARIABLE)  # typer's parser of an unfinished line
    with contextlib.suppress(Exception):  # a traceback in the middle of a line that is being typed helps no one
        shell = FishComplete(with_completers(app), {}, "vitreous", "")
        for item in shell.get_completions(*shell.get_completion_args()):
            if item.type == "plain" and item.value:
                print(f"{item.value}\t{' '.join((item.help or '').split())}")


def with_completers(app: Typer) -> Any:
    """Return the command with the completers of its options and arguments; a completer may offer more than fits."""
    from typer.main import get_command

    root: Any = get_command(app)
    for command in (*root.commands.values(), *root.commands["data"].commands.values()):
        for parameter in command.params:
            named = (f"{command.name} {parameter.name}", parameter.name)
            completer = next((COMPLETERS[name] for name in named if name in COMPLETERS), None)
            if completer is not None:
                parameter.shell_complete = _adapter(completer)
    return root


def _adapter(completer: Completer) -> Callable[[Any, str], list[Any]]:
    from typer._completion_classes import CompletionItem  # type: ignore[attr-defined]

    def shell_complete(_context: Any, incomplete: str) -> list[Any]:
        fitting = (offer for offer in completer(incomplete) if offer[0].startswith(incomplete))
        return [CompletionItem(value, help=description) for value, description in fitting]

    return shell_complete
