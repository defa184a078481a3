"""`signalhub completion`: the shell completes commands, options, topics and contexts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal

from cyclopts import Parameter

from signalhub.cli.terminal.failures import usage

Shell = Literal["bash", "zsh", "fish"]

# Names are added to what is known without asking. They are taken as they are: nothing in them is
# expanded.
_NAMES: Final[dict[Shell, str]] = {
    "bash": """
_signalhub_with_names() {
  local names
  _signalhub
  mapfile -t names < <(signalhub __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
  COMPREPLY+=("${names[@]}")
}

complete -F _signalhub_with_names signalhub
""",
    "zsh": """
_signalhub_with_names() {
  local -a names
  names=("${(@f)$(signalhub __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  (( ${#names[1]} )) && compadd -a names
  _cyclopts_signalhub "$@"
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _signalhub_with_names "$@"
else
  compdef _signalhub_with_names signalhub
fi
""",
    "fish": """
complete -c signalhub -f -a '(signalhub __complete (commandline -opc)[2..] (commandline -ct))'
""",
}


def completion(
    shell: Annotated[Shell, Parameter(name="SHELL", help="bash, zsh or fish.")],
    /,
    *,
    install: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Write the script where the shell looks."),
    ] = False,
) -> None:
    """Print the script that lets a shell complete signalhub commands, or install it.

    Topics are those of the hub that --url, the context or SIGNALHUB_URL names;
    without an answer within 0.3 s there are none.
    """
    text = script(shell)
    if not install:
        print(text, end="")
        return
    place = place_of(shell)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        place.chmod(0o644)
    except OSError as error:
        raise usage(
            f"cannot write {place}: {error.strerror}",
            f"write it elsewhere: `signalhub completion {shell} > FILE`, and source that",
        ) from None
    print(f"{place}\n{_HINTS[shell]}")


def script(shell: Shell) -> str:
    """The whole script for a shell."""
    from signalhub.cli.app import build

    text = build().generate_completion(prog_name="signalhub", shell=shell)
    names = _NAMES[shell]
    if shell == "zsh":
        # The file must end with the function that is called.
        return text.rstrip() + "\n" + names
    return text + names


def place_of(shell: Shell) -> Path:
    """Where the shell looks for completions of its user."""
    home = Path.home()
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    match shell:
        case "bash":
            return data / "bash-completion" / "completions" / "signalhub"
        case "zsh":
            return home / ".zfunc" / "_signalhub"
        case "fish":
            return config / "fish" / "completions" / "signalhub.fish"


_HINTS: Final[dict[Shell, str]] = {
    "bash": "new shells load it if the package bash-completion is installed",
    "zsh": "add to ~/.zshrc, before compinit: fpath+=~/.zfunc",
    "fish": "new shells load it",
}
