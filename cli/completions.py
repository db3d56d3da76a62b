"""Shell completions of the program `rollring`: bash, zsh and fish, from one table of commands."""

import dataclasses
import re

FLAGS = re.compile(r"--?[A-Za-z][A-Za-z-]*")
WORDS = re.compile(r"\b[A-Z]+:\{([^}]*)\}")
RINGS = """rollring ls --json 2>/dev/null | grep -o '"ring":"[^"]*"' | cut -d'"' -f4"""


@dataclasses.dataclass
class Option:
    """`value`: "" without one, else its name; `optional`: it may be left out."""
    names: list
    about: str
    value: str = ""
    optional: bool = False
    words: tuple = ()

    @property
    def is_file(self):
        return any(kind in self.value for kind in ("FILE", "DIR", "PROGRAM"))

    @classmethod
    def of(cls, left, about):
        names = FLAGS.findall(left.split(" ")[0])
        rest = re.sub(r" (Excludes|Needs): .*", "", left).partition(" ")[2]
        choice = WORDS.search(rest)
        words = tuple(choice[1].split(",")) if choice else ()
        value = re.sub(r"[^A-Z_/-].*", "", rest.lstrip("[")) or ("VALUE" if rest else "")
        text = " ".join(about.split())
        return cls(names, text, value, rest.startswith("["), words)


@dataclasses.dataclass
class Command:
    about: str
    options: list
    takes_ring: bool


def table(pages):
    """`pages` maps names of commands to their help."""
    return {name: Command(about=page.about.split("\n")[0],
                          options=[Option.of(left, about) for left, about in page.options()],
                          takes_ring=any(left.startswith("NAME")
                                         for left, _ in page.entries("Positionals")))
            for name, page in pages.items()}


def bash(commands):
    values, flags = [], []
    for name, command in commands.items():
        for option in command.options:
            pattern = "|".join(f"{name}:{flag}" for flag in option.names)
            if option.words:
                values.append(f"        {pattern}) words='{' '.join(option.words)}' ;;")
            elif option.is_file:
                values.append(f"        {pattern}) files=1 ;;")
            elif option.value:
                values.append(f"        {pattern}) return ;;")
        own = [flag for option in command.options for flag in option.names
               if flag.startswith("--")]
        flags.append(
            f"        {name}) flags='{' '.join(own)}' rings={int(command.takes_ring)} ;;")
    return f"""# bash completion for rollring, made from its --help
_rollring() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}}
    local command=${{COMP_WORDS[1]}} words='' files='' flags='' rings=0
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W '{' '.join(commands)} --help --version --color' -- "$cur"))
        return
    fi
    # --option=value comes as three words.
    if [ "$cur" = = ]; then
        cur=''
    elif [ "$prev" = = ]; then
        prev=${{COMP_WORDS[COMP_CWORD - 2]}}
    fi
    case $command:$prev in
{chr(10).join(values)}
    esac
    if [ -n "$files" ]; then
        compopt -o filenames 2>/dev/null
        COMPREPLY=($(compgen -f -- "$cur"))
        return
    fi
    if [ -z "$words" ]; then
        case $command in
{chr(10).join(flags)}
        esac
        if [[ $cur == -* ]]; then
            words=$flags
        elif [ "$rings" = 1 ]; then
            words=$({RINGS})
        fi
    fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -F _rollring rollring
"""


def quoted(text):
    return "'" + text.replace("'", r"'\''") + "'"


def zsh_option(option):
    about = re.sub(r"([\[\]\\:])", r"\\\1", option.about)
    action = ""
    if option.value:
        action = (":" if option.optional else "") + f":{option.value}:"
        action += f"({' '.join(option.words)})" if option.words else ""
        action += "_files" if option.is_file else ""
    lines = []
    for flag in option.names:
        others = f"({' '.join(option.names)})" if len(option.names) > 1 else ""
        joint = "=" if option.value and flag.startswith("--") else ""
        lines.append(quoted(f"{others}{flag}{joint}[{about}]{action}"))
    return lines


def zsh(commands):
    cases = []
    for name, command in commands.items():
        specs = [line for option in command.options for line in zsh_option(option)]
        if command.takes_ring:
            specs.append("'1:ring:_rollring_rings'")
        body = " \\\n                ".join(specs)
        cases.append(f"        {name})\n            _arguments \\\n                {body} ;;")
    described = "\n".join(
        "        " + quoted(f"{name}:{command.about.replace(':', chr(92) + ':')}")
        for name, command in commands.items())
    return f"""#compdef rollring
# zsh completion for rollring, made from its --help

_rollring_rings() {{
    local -a rings
    rings=(${{(f)"$({RINGS})"}})
    _describe -t rings ring rings
}}

_rollring() {{
    local -a commands
    commands=(
{described}
    )
    if (( CURRENT == 2 )); then
        _describe -t commands command commands
        [[ $words[CURRENT] == -* ]] && compadd -- --help --version --color
        return
    fi
    local command=$words[2]
    shift words
    (( CURRENT-- ))
    case $command in
{chr(10).join(cases)}
    esac
}}

_rollring "$@"
"""


def fish(commands):
    def text(words):
        return "'" + words.replace("\\", "\\\\").replace("'", "\\'") + "'"

    out = ["# fish completion for rollring, made from its --help", "complete -c rollring -f"]
    for name, command in commands.items():
        out.append(f"complete -c rollring -n __fish_use_subcommand -a {name} "
                   f"-d {text(command.about)}")
        seen = f"complete -c rollring -n '__fish_seen_subcommand_from {name}'"
        for option in command.options:
            flags = "".join(f" -l {flag[2:]}" if flag.startswith("--") else f" -s {flag[1:]}"
                            for flag in option.names)
            kind = ""
            if option.words:
                kind = f" -x -a '{' '.join(option.words)}'"
            elif option.is_file:
                kind = " -r -F"
            elif option.value and not option.optional:
                kind = " -x"
            out.append(f"{seen}{flags}{kind} -d {text(option.about)}")
    rings = " ".join(name for name, command in commands.items() if command.takes_ring)
    out.append(f"complete -c rollring -n '__fish_seen_subcommand_from {rings}' "
               f"-a {text('(' + RINGS + ')')}")
    for flag, about in (("help", "Print this help message and exit"),
                        ("version", "Display program version information and exit"),
                        ("color", "Colour the output")):
        kind = " -x -a 'auto always never'" if flag == "color" else ""
        out.append(f"complete -c rollring -n __fish_use_subcommand -l {flag}{kind} "
                   f"-d {text(about)}")
    return "\n".join(out) + "\n"
